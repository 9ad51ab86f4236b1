package registry

import (
	"crypto/rand"
	"fmt"
	"slices"
	"time"
)

// MaxEarlier bounds the revisions in Network.Earlier.
const MaxEarlier = 32

// revisionLength is the number of random characters in a revision, with five bits each.
const revisionLength = 12

// Replacing returns n as the revision that follows old. old is the zero Network if n is a new network.
func (n Network) Replacing(old Network) Network {
	n.Revision, n.Earlier, n.FromBlock, n.Restored = rand.Text()[:revisionLength], nil, false, old.Restored
	if n.Restored.After(time.Now()) {
		n.Restored = time.Time{} // by a clock that is ahead; hosts would wait at each start
	}
	if replaced := old.RevisionOrVersion(); replaced != "" {
		n.Earlier = append(slices.Clone(old.Earlier), replaced)
		n.Earlier = n.Earlier[max(0, len(n.Earlier)-MaxEarlier):]
	}
	return n
}

// Restoring returns n as it is written again to a store that has lost it, or its last change: the same revision, with the
// present time. Its indexes are 0.
func (n Network) Restoring() Network {
	n.Revision = n.RevisionOrVersion()
	n.CreateIndex, n.ModifyIndex, n.Restored = 0, 0, time.Now().UTC().Truncate(time.Second)
	return n
}

// RevisionOrVersion returns the definition's revision or, if it was written without one, the version of its record in the
// store: "@12.34". It is "" for a definition that was never stored.
func (n Network) RevisionOrVersion() string {
	if n.Revision != "" || n.ModifyIndex == 0 {
		return n.Revision
	}
	return fmt.Sprintf("@%d.%d", n.CreateIndex, n.ModifyIndex)
}

// Replaced reports whether n has replaced old, directly or through others, and is therefore the later one in any store.
// It is false if old is so much older that n does not name it any more.
func (n Network) Replaced(old Network) bool {
	return slices.Contains(n.Earlier, old.RevisionOrVersion())
}

// Diverged reports whether n is a change that was made without knowing other, as in a store that was set back: both have
// replaced the same revision, and neither has replaced the other.
func (n Network) Diverged(other Network) bool {
	if n.Revision == other.Revision || n.Replaced(other) || other.Replaced(n) {
		return false
	}
	return slices.ContainsFunc(n.Earlier, func(r string) bool { return slices.Contains(other.Earlier, r) })
}
