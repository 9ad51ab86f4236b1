package definition

import (
	"fmt"
	"slices"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// cannotFollow is why a host that runs flannel stays with the backend that it has.
const cannotFollow = "runs flannel, which reads the network's definition only when it starts"

// CheckFollowers returns an ErrSwitch that names the hosts which run flannel and would be cut off by a change of the
// switch of a network from old to changed.
func CheckFollowers(old, changed registry.Network, leases []registry.Lease, kinds map[string]backend.Type) error {
	var hosts []string
	for _, l := range held(leases) {
		if cutsOff(l, old, changed, kinds) {
			hosts = append(hosts, l.Node)
		}
	}
	if len(hosts) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s would be cut off, since each %s: move the hosts to leno first, or reverse the switch; "+
		"`leno network apply -force` with the new definition does not wait for them", ErrSwitch, FirstFew(hosts),
		cannotFollow)
}

// cutsOff reports whether the change takes the network from a host that runs flannel: it adds or removes an address
// family, which moves all records to other keys, begins a switch to another backend than the present one, which flannel
// hosts run, or leaves another one alone. Any change of an option that needs another device, or on which both ends of a
// path must agree, makes another backend.
func cutsOff(l registry.Lease, from, to registry.Network, types typeSet) bool {
	old, now := carriage.Of(from.Carriage()), carriage.Of(to.Carriage())
	if !l.Foreign || l.Backend.Type != old.Current.Type {
		return false
	}
	if !slices.EqualFunc(from.Plan, to.Plan, isSameFamily) {
		return true
	}
	return !types.isSame(old.Current, now.Target()) && (now.Next == nil || !types.isSame(old.Target(), now.Target()))
}

func isSameFamily(a, b registry.Pool) bool { return a.Prefix.Addr().Is4() == b.Prefix.Addr().Is4() }
