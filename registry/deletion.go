package registry

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Deletion records that a network was deleted. It replaces the network's definition in the store, so every host can
// tell a network that ended from one that the store lost, even a host that was away when it happened.
type Deletion struct {
	Network string
	Time    time.Time // by the clock of the host that deleted it, to the second

	Lineage // of the definition that was deleted; zero if there was none, or it could not be used

	CreateIndex uint64 // of the key, the same as that of the definition before it
	ModifyIndex uint64
}

// The record of a deletion stays in the store while there are leases of the network, while it is one of the last
// DeletionsKept, and for DeletionKept, if the clock of the host that wrote it is right. A host that was away for longer
// does not know what became of the network.
const (
	DeletionKept  = 30 * 24 * time.Hour
	DeletionsKept = 100
)

// OldDeletions returns the deletions, of all that a store has, whose records may be removed if there are no leases.
func OldDeletions(all []Deletion) []Deletion {
	all = slices.SortedFunc(slices.Values(all), func(a, b Deletion) int {
		return cmp.Compare(b.ModifyIndex, a.ModifyIndex)
	})
	return slices.DeleteFunc(all[min(len(all), DeletionsKept):], func(d Deletion) bool {
		return time.Since(d.Time) < DeletionKept
	})
}

// NewDeletion returns the deletion now of the network called name. old is its definition, zero if there is none that
// can be used.
func NewDeletion(name string, old Network) Deletion {
	return Deletion{Network: name, Time: time.Now(), Lineage: old.Lineage}
}

// DeletedError is an ErrNetworkNotFound about a network that was deleted.
type DeletedError struct{ Deletion }

func (e *DeletedError) Error() string {
	return fmt.Sprintf("%s: it was deleted at %s", ErrNetworkNotFound, e.Time.UTC().Format(time.RFC3339))
}

func (e *DeletedError) Unwrap() error { return ErrNetworkNotFound }

type deletionRecord struct {
	Version int       `json:"version"`
	Name    string    `json:"name"`
	Deleted time.Time `json:"deleted"`
	Lineage
}

// FormatDeletion returns the value under which d is stored, for example
// {"version":1,"name":"blue","deleted":"2026-11-22T21:40:00Z","revision":"PZ3UGO7KQRLX",
// "generation":1}.
func FormatDeletion(d Deletion) ([]byte, error) {
	return json.Marshal(deletionRecord{Version, d.Network, d.Time.UTC().Truncate(time.Second), d.Lineage})
}
