package registry

import (
	"crypto/rand"
	"slices"
)

// MaxEarlier bounds the revisions in Network.Earlier.
const MaxEarlier = 32

// revisionLength is the number of random characters in a revision, with five bits each.
const revisionLength = 12

// Replacing returns n as the revision that follows old. old is the zero Network if n is a new network.
func (n Network) Replacing(old Network) Network {
	n.Revision, n.Earlier, n.Restored = rand.Text()[:revisionLength], nil, old.Restored
	if old.Revision != "" {
		n.Earlier = append(slices.Clone(old.Earlier), old.Revision)
		n.Earlier = n.Earlier[max(0, len(n.Earlier)-MaxEarlier):]
	}
	return n
}

// Replaced reports whether n has replaced old, directly or through others, and is therefore the later one in any store.
// It is false if old is so much older that n does not name it any more.
func (n Network) Replaced(old Network) bool {
	return old.Revision != "" && slices.Contains(n.Earlier, old.Revision)
}

// Diverged reports whether n is a change that was made without knowing other, as in a store that was set back: both have
// replaced the same revision, and neither has replaced the other.
func (n Network) Diverged(other Network) bool {
	if n.Revision == other.Revision || n.Replaced(other) || other.Replaced(n) {
		return false
	}
	return slices.ContainsFunc(n.Earlier, func(r string) bool { return slices.Contains(other.Earlier, r) })
}
