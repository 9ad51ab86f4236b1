package belief

import (
	"errors"
	"slices"
	"time"

	"github.com/lenonet/leno/registry"
)

// A Definition is the definition of a network as a host last knew it. It is immutable; nil if the host knows none.
type Definition struct {
	Network registry.Network
	Used    time.Time // when it was last known to be in force
	// Confirmed is true if this process has read the definition from the store, and therefore knows of every change
	// since. Otherwise an earlier process wrote it down.
	Confirmed bool
	// OtherLocation is where an earlier process had the definition from, if the agent uses another location of a store
	// now, and "" otherwise. Then a definition that is missing was not lost.
	OtherLocation string

	// abandoned are the definitions that this process knew before others that were made without knowing them, in a store
	// that was set back. The store may be set forward again.
	abandoned []registry.Network
}

// A Verdict says what the store's answer about a network's definition means to a host.
type Verdict int

const (
	InForce    Verdict = iota // the store has the definition that is in force, maybe a later one than the known one
	Lost                      // it has none, an older one, or an older deletion: the known one stays in force
	Unreadable                // its record cannot be used: the known one stays in force
	Declined                  // its definition has no effect until it is confirmed: the known one stays in force
	Ended                     // the network was deleted
	NoAnswer                  // the error, and this host knows none that may be in force without the store
)

// Judge returns what the store's answer means: the definition, or the error of registry.Networks.Network.
func (k *Definition) Judge(stored registry.Network, err error) Verdict {
	deleted := &registry.DeletedError{}
	switch {
	case errors.As(err, &deleted) && (k == nil || k.IsEndedBy(deleted.Deletion)):
		return Ended
	case errors.Is(err, registry.ErrNetworkNotFound) && k != nil && k.OtherLocation != "":
		return NoAnswer
	case errors.Is(err, registry.ErrNetworkNotFound) && k.IsUsable(), err == nil && k.supersedes(stored):
		return Lost
	case errors.Is(err, registry.ErrInvalid) && k.IsUsable():
		return Unreadable
	case err != nil:
		return NoAnswer
	case stored.Foreign && k.IsUsable() && !saysTheSameAs(k.Network, stored):
		return Declined
	}
	return InForce
}

// Confirm returns the definition n, which the store had when it was asked. isDiverged means that n is a change that was
// made without knowing k.
func (k *Definition) Confirm(n registry.Network, asked time.Time) (now *Definition, isDiverged bool) {
	now = &Definition{Network: n, Used: asked, Confirmed: true}
	if k != nil {
		now.abandoned, isDiverged = k.abandoned, n.Diverged(k.Network)
	}
	if isDiverged {
		now.abandoned = append(slices.Clone(k.abandoned), k.Network)
	}
	return now, isDiverged
}

// IsUsable reports whether a host may keep the definition in force when the store has none. If it was last used so long
// ago that the record of a deletion may have been removed again, nothing shows what became of the network.
func (k *Definition) IsUsable() bool {
	return k != nil && (k.Confirmed || time.Since(k.Used) < registry.DeletionKept)
}

// IsEndedBy reports whether the deletion is the end of the network. It is not if the definition is a later one, and the
// deletion came back with an older state of the store.
//
// A deletion ends the definition that it names and those that this one has replaced. Only if one of the two has no
// revision, the indexes decide if the deletion is in the same record as the definition and later, and otherwise the
// time: the record may be another one, or be restored in a new cluster, in which indexes begin lower.
func (k *Definition) IsEndedBy(d registry.Deletion) bool {
	n := k.Network
	switch {
	case d.Revision != "" && n.Revision != "":
		return d.Revision == n.Revision || d.Replaced(n)
	case d.CreateIndex == n.CreateIndex:
		return d.ModifyIndex > n.ModifyIndex || d.Time.After(k.Used)
	}
	return !d.Time.Before(k.Used.Truncate(time.Second))
}

// supersedes reports whether n, the version in the store, is older than the known one: the store was set back to a
// state before the last change, or a host that did not know of the change has restored the definition, or has defined
// the network from its configuration.
//
// The revisions decide, if they can. Otherwise the indexes of a record that was created once do, but only if this
// process has read the known definition from the store. What an earlier process wrote down may be from another cluster,
// in which the same snapshot was restored: the record then has the same CreateIndex, and later versions may have lower
// indexes.
func (k *Definition) supersedes(n registry.Network) bool {
	switch {
	case k == nil || n.Replaced(k.Network):
		return false
	case k.Network.Replaced(n):
		return k.IsUsable() // also if both say the same: n does not name what was in force in between
	case slices.ContainsFunc(k.abandoned, func(old registry.Network) bool { return isWritten(n, old) }):
		return true // a host that has abandoned the known one instead would restore n, with another time
	case !k.Confirmed || n.Diverged(k.Network):
		return false
	case n.FromBlock && n.Restored.IsZero() && n.Revision != k.Network.Revision:
		return n.CreateIndex != k.Network.CreateIndex
	}
	return k.Network.CreateIndex == n.CreateIndex && k.Network.ModifyIndex > n.ModifyIndex && !saysTheSameAs(k.Network, n)
}

// isWritten reports whether n is the definition old, and has not been restored since.
func isWritten(n, old registry.Network) bool {
	return n.RevisionOrVersion() == old.RevisionOrVersion() && n.Restored.Equal(old.Restored)
}

// saysTheSameAs reports whether two definitions say the same of the network.
func saysTheSameAs(a, b registry.Network) bool {
	return len(registry.Differences(a, b)) == 0 && a.Carriage().Equal(b.Carriage())
}
