package network

import (
	"fmt"
	"strings"

	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/registry"
)

// declines reports whether n, the version in the store, stays without effect: flannel's operator changed the network.
// flanneld reads its configuration only when it starts, so hosts that follow at once part from those that run flannel.
// A host that knows no definition takes the one in the store.
func (k *knownDefinition) declines(n registry.Network) bool {
	return n.Foreign && k.usable() && len(definition.Differences(k.network, n)) > 0
}

// declines reports whether the definition in the store stays without effect until an operator confirms it.
func (d *definitionKeeper) declines(stored registry.Network) bool {
	_, defined, _ := d.inForce.Get()
	return defined && d.now().known.declines(stored)
}

// decline records that the definition in the store stays without effect, and how it differs from the one in force.
func (d *definitionKeeper) decline(stored registry.Network) {
	changes := strings.Join(definition.DescribeChanges(d.known.network, stored, d.deps.Datapaths.Backends), "; ")
	text := fmt.Sprintf("flannel's configuration in %s was changed (%s): the definition before stays in force, since flanneld "+
		"reads its configuration only when it starts; write the old one back, or preview the change with `leno network plan FILE`, "+
		"make it with `leno network apply FILE`, and restart flanneld on each host that runs it",
		d.config.StoreName(), changes)
	d.update(func(s *definitionStatus) { s.unconfirmed = text })
}
