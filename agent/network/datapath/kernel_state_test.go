package datapath

import (
	"net/netip"
	"testing"
)

// waiting returns what the kernel has of a host with these subnets after a process that read the device has ended.
func waiting(subnets ...netip.Prefix) KernelState {
	out := KernelState{Routes: 2, Refuses: true, Device: true, Up: true}
	for _, s := range subnets {
		out.Addrs = append(out.Addrs, s.Addr())
	}
	return out
}

func TestStanding(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("fd00:5:0:1::/64")
	both := []netip.Prefix{v4, v6}
	with := func(m KernelState, change func(m *KernelState)) KernelState { change(&m); return m }
	for _, tt := range []struct {
		name    string
		remains KernelState
		subnets []netip.Prefix
		want    Standing
	}{
		{"nothing", KernelState{}, both, NothingStands},
		{"no subnet is remembered", waiting(both...), nil, NothingStands},
		{"a device that no process reads", waiting(both...), both, PacketsWait},
		{"a device with a carrier", with(waiting(both...), func(m *KernelState) { m.Carrier = true }), both, PacketsFlow},
		{"a device that was set down", with(waiting(both...), func(m *KernelState) { m.Up = false }), both, NothingStands},
		{"a device without an address", waiting(), both, NothingStands},
		{"a device with another subnet's", waiting(netip.MustParsePrefix("10.5.2.0/24"), v6), both, NothingStands},
		{"a device with one family's", waiting(v4), both, NothingStands},
		{"routes without a device", KernelState{Routes: 2, Refuses: true}, both, PacketsFlow},
		{"a device that was removed", KernelState{Refuses: true}, both, PacketsWait},
		{"a device that was removed, no subnet is remembered", KernelState{Refuses: true}, nil, NothingStands},
		{"a device without routes", with(waiting(both...), func(m *KernelState) { m.Routes = 0 }), both, PacketsWait},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.remains.Standing(tt.subnets); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

// TestStandingOf judges a network that is being switched by both of its devices.
func TestStandingOf(t *testing.T) {
	subnet := netip.MustParsePrefix("10.5.1.0/24")
	waits := waiting(subnet)
	flows, down, noRoutes := waits, waits, waits
	flows.Carrier, down.Up = true, false
	noRoutes.Carrier, noRoutes.Routes = true, 0
	missing, refused := KernelState{Routes: 2, Refuses: true}, KernelState{Refuses: true}
	for _, tt := range []struct {
		name   string
		states []KernelState // of the current device, and of the next one
		want   Standing
	}{
		{"no switch, nothing", []KernelState{{}}, NothingStands},
		{"no switch, a device with a carrier", []KernelState{flows}, PacketsFlow},
		{"no switch, a device that no process reads", []KernelState{waits}, PacketsWait},
		{"nothing", []KernelState{{}, {}}, NothingStands},
		{"both have a carrier", []KernelState{flows, flows}, PacketsFlow},
		{"no process reads the current one", []KernelState{waits, flows}, PacketsWait},
		{"no process reads the next one", []KernelState{flows, waits}, PacketsWait},
		{"host-gw, and no process reads the next one", []KernelState{missing, waits}, PacketsWait},
		{"to host-gw, and no process reads the current one", []KernelState{waits, missing}, PacketsWait},
		{"host-gw, and the next one was set down", []KernelState{missing, down}, PacketsFlow},
		{"the next one does not exist yet", []KernelState{flows, missing}, PacketsFlow},
		{"the next one was removed with all routes", []KernelState{noRoutes, refused}, PacketsWait},
		{"the current one was removed with all routes", []KernelState{refused, noRoutes}, PacketsWait},
		{"the current one was set down, and the next one has a carrier", []KernelState{down, flows}, PacketsFlow},
		{"the current one was set down, and no process reads the next one", []KernelState{down, waits}, PacketsWait},
		{"the current one was set down, and the next one does not exist yet", []KernelState{down, missing}, NothingStands},
		{"the next one was set down", []KernelState{flows, down}, PacketsFlow},
		{"both were set down", []KernelState{down, down}, NothingStands},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := StandingOf([]netip.Prefix{subnet}, tt.states...); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}
