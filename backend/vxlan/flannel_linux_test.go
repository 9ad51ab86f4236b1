package vxlan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/backendtest"
)

// flannelMAC returns the MAC address of flannel's device for a pool. flanneld makes up new ones when
// its devices are gone.
func flannelMAC(pool, generation int) string {
	return fmt.Sprintf("c6:d2:32:6f:%02x:%02x", generation, 0x44+pool)
}

func flannelAttributes(generation int) string {
	return fmt.Sprintf(`{"own_family":true,"port":8472,"vni":1,"vtep_mac":%q,"vtep_mac_v6":%q}`,
		flannelMAC(0, generation), flannelMAC(1, generation))
}

// startFlannel does what flanneld does: a device for each family, and for each lease a neighbour, a
// forwarding entry and a route. It asks for an MTU of 1450 for both, and the kernel makes 1430 of it
// over IPv6.
func startFlannel(h backendtest.FlannelHost) {
	for i, subnet := range h.Subnets {
		link, bits, mac := "flannel.1", 32, backendtest.Attribute(h.T, h.Peer, "vtep_mac")
		if subnet.Addr().Is6() {
			link, bits, mac = "flannel-v6.1", 128, cmp.Or(backendtest.Attribute(h.T, h.Peer, "vtep_mac_v6"), mac)
		}
		theirs := h.Peer.Subnets[i]
		remote, ok := h.Peer.PublicIP(theirs.Addr())
		if !ok {
			h.T.Fatalf("%s has no public address for %s", h.Peer.Node, theirs)
		}
		h.NS.Sh(fmt.Sprintf(`ip link show %[1]s >/dev/null 2>&1 || ip link add %[1]s address %[2]s mtu 1450 \
	type vxlan id 1 local %[3]s dev %[4]s dstport 8472 nolearning
ip addr replace %[5]s/%[6]d dev %[1]s
ip link set %[1]s up
ip neigh replace %[7]s lladdr %[8]s dev %[1]s nud permanent
bridge fdb replace %[8]s dev %[1]s dst %[9]s self permanent
ip route replace %[10]s via %[7]s dev %[1]s onlink`,
			link, flannelMAC(i, h.Generation), h.PublicIPs[i], h.Underlay, subnet.Addr(), bits,
			theirs.Addr(), mac, remote, theirs))
	}
}

func stopFlannel(h backendtest.FlannelHost) {
	h.NS.Sh("ip link del flannel.1; ip link del flannel-v6.1")
}

func TestFlannelHosts(t *testing.T) {
	t.Parallel()
	flannel := backendtest.Flannel{
		Pools: 2, MTUs: []int{1450, 1430}, Attributes: flannelAttributes, Start: startFlannel, Stop: stopFlannel,
		Conflict: "flannel.1 uses vni 1 on port 8472",
	}
	backendtest.RunFlannel(t, backendtest.Suite{Type: Type()}, flannel)
}

// TestMACOfFlannelsDevice: while flannel's device is in the way, other hosts send to its MAC address. The lease says so,
// and leno's device takes the address over.
func TestMACOfFlannelsDevice(t *testing.T) {
	t.Parallel()
	h := newSite(t, `{}`).hosts[0]
	startFlannel(backendtest.FlannelHost{
		T: t, NS: h.ns, Underlay: "eth0", Subnets: subnetsOf(1)[:1], PublicIPs: h.addrs[:1],
		Peer: backend.Peer{
			Subnets: subnetsOf(2)[:1], PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")},
			Attributes: json.RawMessage(`{"vtep_mac":"0a:58:00:00:00:02"}`),
		},
	})
	var public attributes
	h.ns.Do(func() {
		ad, err := h.b.Advertise(h.state().Underlay)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(ad.Attributes, &public); err != nil {
			t.Fatal(err)
		}
		if _, err := h.b.Apply(t.Context(), h.state()); err == nil {
			t.Error("flannel's device was not in the way")
		}
	})
	if want := flannelMAC(0, 0); public.MAC != want || public.MACv6 != "" {
		t.Errorf("advertised %+v, want %s", public, want)
	}
	h.ns.Sh("ip link del flannel.1")
	host{t, h.ns}.apply(h.b, h.state())
	if out := h.ns.Sh("ip -o link show leno-test"); !strings.Contains(out, public.MAC) {
		t.Errorf("leno's device has another MAC address than %s: %s", public.MAC, out)
	}
}

// TestFlannelHostAmongLenoHosts checks that leno hosts reach each other through one device, and a
// host that runs flannel through a device for each family, whichever family the leno hosts prefer.
func TestFlannelHostAmongLenoHosts(t *testing.T) {
	t.Parallel()
	s := newSite(t, `{}`)
	s.hosts[2].stand("near")
	lenoHosts, them := s.hosts[:2], s.hosts[2]
	their := backend.Peer{
		Node: "flannel-192.0.2.3", Backend: Name, Subnets: subnetsOf(3), PublicIPs: slices.Clone(them.addrs),
		Attributes: json.RawMessage(flannelAttributes(0)),
	}
	state := func(h *siteHost) backend.State {
		s := h.state()
		s.Peers[slices.IndexFunc(s.Peers, func(p backend.Peer) bool { return p.Node == "host-3" })] = their
		return s
	}
	for _, order := range []string{"IPv4 first", "IPv6 first", "IPv4 first again"} {
		for _, h := range lenoHosts {
			if order != "IPv4 first" {
				slices.Reverse(h.addrs)
			}
		}
		for _, h := range lenoHosts {
			if r := (host{t, h.ns}).apply(h.b, state(h)); r.Peers != 2 || len(r.Skipped) != 0 {
				t.Errorf("%s: report %+v", order, r)
			}
			if r := (host{t, h.ns}).apply(h.b, state(h)); r.Writes != 0 {
				t.Errorf("%s: second apply %+v", order, r)
			}
			startFlannel(backendtest.FlannelHost{
				T: t, NS: them.ns, Underlay: "eth0", Subnets: subnetsOf(3), PublicIPs: their.PublicIPs,
				Peer: backend.Peer{
					Subnets: subnetsOf(h.number), PublicIPs: h.addrs,
					Attributes: json.RawMessage(fmt.Sprintf(`{"vtep_mac":%q}`, h.b.devices[0].mac)),
				},
			})
		}
		other := map[bool]string{true: "leno-test", false: "leno-test~2"}
		v4, v6 := other[order != "IPv6 first"], other[order == "IPv6 first"]
		for _, way := range []struct {
			from      int
			src, dst  string
			link      string
			otherWise string
		}{
			{0, "10.5.1.1", "10.5.2.1", "leno-test", "leno-test~2"},
			{0, "fd00:5:0:1::1", "fd00:5:0:2::1", "leno-test", "leno-test~2"},
			{0, "10.5.1.1", "10.5.3.1", v4, v6},
			{0, "fd00:5:0:1::1", "fd00:5:0:3::1", v6, v4},
			{1, "10.5.2.1", "10.5.3.1", v4, v6},
			{1, "fd00:5:0:2::1", "fd00:5:0:3::1", v6, v4},
		} {
			h := s.hosts[way.from]
			// The kernel sends few packets of its own: reports about groups.
			const packets = 10
			ping := fmt.Sprintf("ping -n -c %d -i 0.01 -w 60 -M do -s 1300 -I %s %s", packets, way.src, way.dst)
			before := [2]int{h.sent(way.link), h.sent(way.otherWise)}
			out, err := h.ns.Try(ping)
			if err != nil { // neighbours may have to be resolved first
				before = [2]int{h.sent(way.link), h.sent(way.otherWise)}
				out, err = h.ns.Try(ping)
			}
			used, unused := h.sent(way.link)-before[0], h.sent(way.otherWise)-before[1]
			if err != nil || used < packets || unused >= packets {
				t.Errorf("%s: %s: %v, %d packets by %s, %d by %s\n%s",
					order, ping, err, used, way.link, unused, way.otherWise, out)
			}
		}
	}

	h := s.hosts[0]
	h.ns.Do(func() {
		if links := kernel.Arrivals("test", "eth0"); !slices.Equal(links, []string{"leno-test", "leno-test~2"}) {
			t.Errorf("packets arrive by %s", links)
		}
	})
	// A state that may be incomplete removes nothing, and makes what is missing.
	for _, script := range []string{"true", "ip link del leno-test~2"} {
		h.b = s.open(`{}`)
		h.ns.Sh(script)
		partial := state(h)
		partial.Partial = true
		(host{t, h.ns}).apply(h.b, partial)
		partial.Peers = nil
		(host{t, h.ns}).apply(h.b, partial)
		if out := h.ns.Sh("ip -6 route show proto 108"); !strings.Contains(out, "via fd00:5:0:3:: dev leno-test~2") {
			t.Errorf("%s: no path to flannel:\n%s", script, out)
		}
	}

	// When the host comes back with leno, or not at all, the second device goes.
	for name, peers := range map[string][]backend.Peer{"a leno host": s.hosts[0].state().Peers, "none": nil} {
		now := h.state()
		now.Peers = peers
		(host{t, h.ns}).apply(h.b, state(h))
		(host{t, h.ns}).apply(h.b, now)
		if out, err := h.ns.Try("ip link show leno-test~2"); err == nil {
			t.Errorf("%s: the second device is left:\n%s", name, out)
		}
		if r := (host{t, h.ns}).apply(h.b, now); r.Writes != 0 {
			t.Errorf("%s: second apply %+v", name, r)
		}
	}
}

// TestAdoptedDevices hands the devices of flannel to leno while packets flow to and from a host that runs flannel and
// one that runs leno. Not one is lost: the devices keep their MAC addresses, which the host then publishes.
func TestAdoptedDevices(t *testing.T) {
	t.Parallel()
	s := newSite(t, `{}`)
	for _, h := range s.hosts {
		h.stand("near")
	}
	us, lenos, flannels := s.hosts[0], s.hosts[1], s.hosts[2]
	asFlannel := func(h *siteHost) backend.Peer {
		return backend.Peer{
			Node: fmt.Sprintf("flannel-192.0.2.%d", h.number), Backend: Name, Subnets: subnetsOf(h.number),
			PublicIPs:  slices.Clone(h.addrs),
			Attributes: json.RawMessage(flannelAttributes(h.number)),
		}
	}
	start := func(h *siteHost, peers ...backend.Peer) {
		for _, p := range peers {
			startFlannel(backendtest.FlannelHost{T: t, NS: h.ns, Underlay: "eth0", Generation: h.number,
				Subnets: subnetsOf(h.number), PublicIPs: h.addrs, Peer: p})
		}
	}
	replace := func(state backend.State, node string, p backend.Peer) backend.State {
		state.Peers[slices.IndexFunc(state.Peers, func(p backend.Peer) bool { return p.Node == node })] = p
		return state
	}
	theirState := replace(replace(lenos.state(), "host-1", asFlannel(us)), "host-3", asFlannel(flannels))
	(host{t, lenos.ns}).apply(lenos.b, theirState)
	// A leno host publishes one address, and flannel's devices have one each.
	asLeno := backend.Peer{Subnets: subnetsOf(2), PublicIPs: lenos.addrs,
		Attributes: json.RawMessage(fmt.Sprintf(`{"vtep_mac":%q}`, lenos.b.devices[0].mac))}
	start(us, asLeno, asFlannel(flannels))
	start(flannels, asLeno, asFlannel(us))

	type stream struct {
		from *siteHost
		args string // of ping
	}
	var streams []stream
	for _, way := range [][2]*siteHost{{us, lenos}, {lenos, us}, {us, flannels}, {flannels, us}} {
		for i, subnet := range subnetsOf(way[1].number) {
			args := fmt.Sprintf("-I %s %s", subnetsOf(way[0].number)[i].Addr().Next(), subnet.Addr().Next())
			streams = append(streams, stream{way[0], args})
			// The first packets may be lost before the underlay's addresses are resolved.
			way[0].ns.Sh("for i in 1 2 3 4 5 6 7 8 9; do ping -n -c 1 -i 0.1 -w 20 " + args + " && exit; done; exit 1")
		}
	}
	stop, results := make(chan struct{}), make(chan string, len(streams))
	for _, st := range streams {
		go func() {
			lost := ""
			for running := true; running; {
				select {
				case <-stop:
					running = false
				default:
				}
				out, err := st.from.ns.Try("ping -n -q -i 0.005 -c 40 -W 20 " + st.args)
				if err != nil || !strings.Contains(out, " 0% packet loss") {
					lost += out
				}
			}
			results <- lost
		}()
	}
	index := us.ns.Index("flannel.1")
	us.ns.Sh(fmt.Sprintf("ip link set flannel.1 alias %q; ip link set flannel-v6.1 alias %q",
		backend.LinkAlias("test"), backend.OtherFamilyLinkAlias("test")))
	us.ns.Sh(`for family in -4 -6; do
	ip $family route show proto boot | grep " dev flannel" | sed 's/ proto boot//; s/$/ proto 108/' | xargs -rL1 ip $family route replace
done`)
	state := replace(us.state(), "host-3", asFlannel(flannels))
	partial := state
	partial.Partial = true
	adv := us.advertise()
	for _, now := range []backend.State{partial, state} {
		if r := (host{t, us.ns}).apply(us.b, now); r.Peers != 2 {
			t.Errorf("report %+v", r)
		}
	}
	// The other hosts learn that this one runs leno now.
	theirState = replace(theirState, asFlannel(us).Node, backend.Peer{
		Node: "host-1", Backend: Name, Subnets: subnetsOf(1), PublicIPs: us.addrs, Attributes: adv.Attributes,
	})
	(host{t, lenos.ns}).apply(lenos.b, theirState)
	us.b = s.open(`{}`) // a restart
	(host{t, us.ns}).apply(us.b, state)
	close(stop)
	for range streams {
		if lost := <-results; lost != "" {
			t.Errorf("packets were lost:\n%s", lost)
		}
	}
	want := fmt.Sprintf(`{"vni":1,"port":8472,"vtep_mac":%q,"vtep_mac_v6":%q}`, flannelMAC(0, 1), flannelMAC(1, 1))
	if again := us.advertise(); string(adv.Attributes) != want || string(again.Attributes) != want {
		t.Errorf("published %s, after a restart %s, want %s", adv.Attributes, again.Attributes, want)
	}
	if got := us.ns.Index("leno-test"); got != index {
		t.Errorf("the device has index %d, flannel's had %d", got, index)
	}
}

// TestSecondDeviceOfAnotherProgram checks that a device that only has the second device's name stays
// as it is, and that the first device is used all the same.
func TestSecondDeviceOfAnotherProgram(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ns.Sh("ip link add leno-test~2 type bridge")
	before := h.ns.Sh("ip -o -d link show leno-test~2")
	b, err := Type().New(backend.Config{Network: "test", Link: "leno-test", NodeID: "node", Pools: pools})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	s := h.state("eth0", "192.0.2.1")
	s.Subnets = subnetsOf(1)
	s.Underlay.Addrs = append(s.Underlay.Addrs, netip.MustParseAddr("2001:db8:2::1"))
	s.Peers[0].Subnets, s.Peers[0].Attributes = subnetsOf(2), json.RawMessage(flannelAttributes(0))
	h.ns.Do(func() {
		r, err := b.Apply(t.Context(), s)
		if !errors.Is(err, backend.ErrForeignDevice) || r.Peers != 0 || len(r.Skipped) != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		if _, err := b.Apply(t.Context(), backend.State{}); err != nil {
			t.Errorf("zero state: %v", err)
		}
		_, _ = b.Apply(t.Context(), s)
	})
	if got := h.ns.Sh("ip route show proto 108"); !strings.Contains(got, "10.5.2.0/24 via 10.5.2.0 dev leno-test onlink") {
		t.Errorf("no path for IPv4:\n%s", got)
	}
	if after := h.ns.Sh("ip -o -d link show leno-test~2"); after != before {
		t.Errorf("the device was touched:\n%s\nbefore\n%s", after, before)
	}
}

// TestSecondDeviceOfAnotherBackend checks that of two backends of one network, only the one with the second device's VNI
// uses and removes it.
func TestSecondDeviceOfAnotherBackend(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	open := func(link, alias, options string) *vxlan {
		b, err := Type().New(backend.Config{
			Network: "test", Link: link, Alias: alias, NodeID: "node", Pools: pools, Options: json.RawMessage(options),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b.(*vxlan)
	}
	before := open(backend.LinkName("test"), "", `{}`)
	after := open(backend.LinkNameB("test"), backend.LinkAliasB("test"), `{"vni":2}`)
	s := h.state("eth0", "192.0.2.1")
	s.Subnets = subnetsOf(1)
	s.Underlay.Addrs = append(s.Underlay.Addrs, netip.MustParseAddr("2001:db8:2::1"))
	s.Peers[0].Subnets, s.Peers[0].Attributes = subnetsOf(2), json.RawMessage(flannelAttributes(0))
	h.apply(before, s)
	second := func() string { return h.ns.Sh("ip -o -d link show | grep leno-test~2 || true") }
	want := second()
	if !strings.Contains(want, "vxlan id 1 ") {
		t.Fatalf("second device: %q", want)
	}
	other := s
	other.Peers = nil
	other.Elsewhere = slices.Concat(subnetsOf(2), pools)
	gone := backend.State{Elsewhere: other.Elsewhere}
	for _, state := range []backend.State{other, gone} {
		h.apply(after, state)
		if got := second(); got != want {
			t.Errorf("second device: %s, before: %s", got, want)
		}
	}
	h.apply(after, other)
	h.apply(before, gone)
	if got := second(); got != "" {
		t.Errorf("left: %s", got)
	}
}

func (h *siteHost) advertise() (adv backend.Advertisement) {
	h.site.t.Helper()
	h.ns.Do(func() {
		var err error
		if adv, err = h.b.Advertise(h.state().Underlay); err != nil {
			h.site.t.Errorf("advertise: %v", err)
		}
	})
	return adv
}

// sent returns how many packets the host has sent into a device, 0 if there is none.
func (h *siteHost) sent(link string) int {
	h.site.t.Helper()
	out := strings.TrimSpace(h.ns.Sh(fmt.Sprintf("awk '$1==\"%s:\"{print $11}' /proc/self/net/dev", link)))
	n, err := strconv.Atoi(cmp.Or(out, "0"))
	if err != nil {
		h.site.t.Fatal(err)
	}
	return n
}
