package datapath

import (
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
)

// A Status is what the API shows of a datapath.
type Status struct {
	Link        string // the device of the network's backend; "" for one without a device, and while there is no datapath
	Backend     string // of the definition, for example "vxlan"; "" before the underlay is known
	Underlay    api.Underlay
	VRF         int    // ifindex of the VRF that the underlay is in, 0 for none
	MTU         int    // of the overlay, in bytes
	MTUReason   string // how MTU is computed, for example "1450 = 1500 of eth0 - 50 for VXLAN over IPv4"
	HasUnderlay bool   // there is a usable underlay

	Report   backend.Report // of the last pass
	Applied  time.Time      // when the datapath of a held lease was last found or made right
	Flapping int            // number of faults that another program causes again and again

	Unanswered int // number of peers that packets are sent to without a handshake

	Abilities backend.Abilities // of the backend; none while there is no datapath

	Devices []string // that the underlay depends on

	remote []netip.Addr // addresses of the peers and of the underlay's can_reach
	left   *departure   // from the underlay before, for some time; nil if there was none
}

// A sharedStatus is the status of a datapath. It is safe for concurrent use.
type sharedStatus struct {
	value  *watch.Value[Status]
	report *report.Reporter
}

func (s *sharedStatus) get() Status {
	status, _, _ := s.value.Get()
	return status
}

// update changes the status and wakes the readers of the API.
func (s *sharedStatus) update(change func(*Status)) {
	s.value.Update(change)
	s.report.Changed()
}

// Status returns what the API shows of the datapath.
func (r *Reconciler) Status() Status { return r.status.get() }

// UsesLink reports whether the underlay depends on the device, or may come to depend on it.
func (r *Reconciler) UsesLink(link string) bool {
	s := r.Status()
	return !s.HasUnderlay || slices.Contains(s.Devices, link) || underlay.Names(r.o.Underlay, link)
}

// Reaches reports whether packets to other hosts may take a route to the prefix.
func (r *Reconciler) Reaches(prefix netip.Prefix) bool {
	return slices.ContainsFunc(r.Status().remote, prefix.Contains)
}
