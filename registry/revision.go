package registry

import (
	"crypto/rand"
	"fmt"
	"math"
	"slices"
	"time"
)

// Lineage tells which of two versions of a network's definition is the later one where the indexes of a store cannot.
// It is the same in every store into which the definition is written. A definition that was written by hand has none.
type Lineage struct {
	// Revision is a random name of this version.
	Revision string `json:"revision,omitempty"`

	// Earlier are revisions that this version has replaced, oldest first, at most MaxEarlier: the first one of all, and
	// the latest.
	Earlier []string `json:"earlier,omitempty"`

	// Generation is the number of changes since the network was first defined, this one included. 0 stands for unknown.
	Generation uint64 `json:"generation,omitempty"`
}

const (
	// MaxEarlier bounds the revisions in Lineage.Earlier.
	MaxEarlier = 32

	// MaxGeneration bounds Lineage.Generation: every JSON parser reads numbers up to this one exactly. A definition that
	// has reached it is only later than those that it names.
	MaxGeneration = 1 << 53
)

// revisionLength is the number of random characters in a revision, with five bits each.
const revisionLength = 12

// Replacing returns n as the revision that follows old, which has only a lineage if it was deleted, and is the zero
// Network if n is a new network.
func (n Network) Replacing(old Network) Network {
	n.Lineage = Lineage{Revision: rand.Text()[:revisionLength], Generation: min(old.Generation+1, MaxGeneration)}
	n.FromBlock, n.Restored, n.RestoredLeases = false, old.Restored, old.RestoredLeases
	if replaced := old.RevisionOrVersion(); replaced != "" {
		n.Earlier = append(slices.Clone(old.Earlier), replaced)
		if len(n.Earlier) > MaxEarlier {
			n.Earlier = slices.Delete(n.Earlier, 1, len(n.Earlier)-MaxEarlier+1) // the first one shows what is related
		}
	}
	return n
}

// Restoring returns n as it is written again to a store that has lost it, or its last change: the same revision, with
// the present time. Its indexes are 0. leases is how many there were, 0 if that is not known: there may have been as
// many as fit.
func (n Network) Restoring(leases int) Network {
	if leases == 0 {
		leases = int(min(n.Plan.Capacity(), math.MaxInt32))
	}
	n.Revision, n.RestoredLeases = n.RevisionOrVersion(), leases
	n.CreateIndex, n.ModifyIndex, n.Restored = 0, 0, time.Now().UTC().Truncate(time.Second)
	return n
}

// RevisionOrVersion returns the definition's revision or, if it was written without one, the version of its record in
// the store: "@12.34". It is "" for a definition that was never stored.
func (n Network) RevisionOrVersion() string {
	if n.Revision != "" || n.ModifyIndex == 0 {
		return n.Revision
	}
	return fmt.Sprintf("@%d.%d", n.CreateIndex, n.ModifyIndex)
}

// Replaced reports whether a version with this lineage has replaced old, directly or through others, or both are
// changes of the same definition and it is of a higher generation. It is therefore the later one in any store.
func (l Lineage) Replaced(old Network) bool {
	if slices.Contains(l.Earlier, old.RevisionOrVersion()) {
		return true
	}
	return old.Generation > 0 && l.Generation > old.Generation && l.isRelated(old.Lineage)
}

// isRelated reports whether both lineages name a common revision before them.
func (l Lineage) isRelated(other Lineage) bool {
	return slices.ContainsFunc(l.Earlier, func(r string) bool { return slices.Contains(other.Earlier, r) })
}

// Diverged reports whether n is a change that was made without knowing other, as in a store that was set back, and
// neither is the later one: they are of the same generation, or the generation of one is unknown.
func (n Network) Diverged(other Network) bool {
	return n.Revision != other.Revision && !n.Replaced(other) && !other.Replaced(n) && n.isRelated(other.Lineage)
}

// check checks the limits of a lineage.
func (l Lineage) check() error {
	if len(l.Earlier) > MaxEarlier {
		return fmt.Errorf("%w: %d revisions in \"earlier\", at most %d", ErrInvalid, len(l.Earlier), MaxEarlier)
	}
	if l.Generation > MaxGeneration {
		return fmt.Errorf("%w: generation %d, at most %d", ErrInvalid, l.Generation, uint64(MaxGeneration))
	}
	if l.Revision == "" && len(l.Earlier) == 0 && l.Generation == 0 {
		return nil
	}
	if err := checkName("revision", l.Revision); err != nil {
		return err
	}
	for _, revision := range l.Earlier {
		if err := checkName("earlier revision", revision); err != nil {
			return err
		}
	}
	return nil
}
