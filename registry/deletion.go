package registry

import (
	"encoding/json"
	"fmt"
	"time"
)

// Deletion records that a network was deleted. It replaces the network's definition in the store, so every host can
// tell a network that ended from one that the store lost, even a host that was away when it happened.
type Deletion struct {
	Network string
	Time    time.Time // by the clock of the host that deleted it, to the second

	CreateIndex uint64 // of the key, the same as that of the definition before it
	ModifyIndex uint64
}

// DeletionKept is the minimum time that the record of a deletion stays in the store; it stays longer while there are
// leases of the network. A host that was away for longer does not know what became of the network.
const DeletionKept = 30 * 24 * time.Hour

// Ends reports whether the deletion is the end of n as a host knows it. It is not when n is the later definition and
// the deletion came back with an older state of the store. used is when the host last knew n to be in force. It decides
// where the indexes prove nothing: when the records have different keys, or when the deletion was written in a new
// cluster, in which the same key was restored and indexes begin lower.
func (d Deletion) Ends(n Network, used time.Time) bool {
	if d.CreateIndex == n.CreateIndex {
		return d.ModifyIndex > n.ModifyIndex || d.Time.After(used)
	}
	return !d.Time.Before(used.Truncate(time.Second))
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
}

// FormatDeletion returns the value under which d is stored, for example
// {"version":1,"name":"blue","deleted":"2026-11-22T21:40:00Z"}.
func FormatDeletion(d Deletion) ([]byte, error) {
	return json.Marshal(deletionRecord{Version, d.Network, d.Time.UTC().Truncate(time.Second)})
}
