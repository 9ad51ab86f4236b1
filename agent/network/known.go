package network

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// A knownDefinition is the definition of a network as this host last knew it.
type knownDefinition struct {
	network registry.Network
	used    time.Time // when it was last known to be in force
	// confirmed is true if this process has read the definition from the store, and therefore knows of every change
	// since. Otherwise an earlier process wrote it down.
	confirmed bool
	// abandoned are the revisions that this process knew before others that were made without knowing them, in a store
	// that was set back. The store may be set forward again.
	abandoned []string
}

// usable reports whether a host may keep the definition in force when the store has none. If it was last used so long
// ago that the record of a deletion may have been removed again, nothing shows what became of the network.
func (k *knownDefinition) usable() bool {
	return k != nil && (k.confirmed || time.Since(k.used) < registry.DeletionKept)
}

// restoreAfter returns how long to wait before a lost definition is restored. Hosts that use it come before those that
// only remember it, because the latter may have missed a change, and before new hosts, which define the network from
// their configuration: the more hosts use it, the sooner one of them restores it. A host whose own block defines the
// same network waits no longer than they do.
func (k *knownDefinition) restoreAfter(local config.Network, p retry.Policy,
	kinds map[string]backend.Type) time.Duration {
	if own, err := definition.FromBlock(local); k.confirmed || err == nil &&
		len(definition.DifferencesOfBlock(own, k.network, kinds)) == 0 {
		return rand.N(p.RestoreInUse)
	}
	return p.RestoreRemembered + rand.N(p.RestoreRemembered)
}

// supersedes reports whether n, the version in the store, is older than the known one: the store was set back to a
// state before the last change, or a host that did not know of the change has restored the definition, or has defined
// the network from its configuration.
//
// The revisions decide, if they can. Otherwise the indexes of a record that was created once do, but only if this
// process has read the known definition from the store. What an earlier process wrote down may be from another cluster,
// in which the same snapshot was restored: the record then has the same CreateIndex, and later versions may have lower
// indexes.
func (k *knownDefinition) supersedes(n registry.Network) bool {
	switch {
	case k == nil || n.Replaced(k.network):
		return false
	case k.network.Replaced(n):
		return k.usable() // also if both say the same: n does not name what was in force in between
	case slices.Contains(k.abandoned, n.RevisionOrVersion()) && !n.Restored.After(k.network.Restored):
		return true // a host that has abandoned the known one instead would restore n, with a later time
	case !k.confirmed || n.Diverged(k.network):
		return false
	case n.FromBlock && n.Restored.IsZero() && n.Revision != k.network.Revision:
		return n.CreateIndex != k.network.CreateIndex
	}
	return k.network.CreateIndex == n.CreateIndex && k.network.ModifyIndex > n.ModifyIndex &&
		len(definition.Differences(k.network, n)) > 0
}

// rememberedDefinition returns the definition that an earlier process wrote down, or nil if there is none.
func rememberedDefinition(dataDir, network string) *knownDefinition {
	before, err := state.Load(dataDir, network)
	if err != nil || len(before.Record) == 0 {
		return nil
	}
	n, err := registry.ParseNetwork(network, before.Record)
	if err != nil {
		return nil
	}
	n.CreateIndex, n.ModifyIndex = before.Definition, before.RecordIndex
	return &knownDefinition{network: n, used: before.Renewed}
}
