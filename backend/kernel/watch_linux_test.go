package kernel_test

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// watched opens and runs a watch inside a namespace; it ends with the test.
func watched(t *testing.T, ns *nstest.NS) *kernel.Watch {
	t.Helper()
	var w *kernel.Watch
	ns.Do(func() {
		var err error
		w, err = kernel.OpenWatch(kernel.WatchFilter{
			Own:  func(link string) bool { return strings.HasPrefix(link, "leno-") },
			Used: func(link string) bool { return link == "eth0" },
			Reaches: func(p netip.Prefix) bool {
				return p.Contains(netip.MustParseAddr("203.0.113.9")) || p.Contains(netip.MustParseAddr("2001:db8:9::9"))
			},
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Errorf("watch: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return w
}

func told(t *testing.T, w *kernel.Watch, what string) {
	t.Helper()
	select {
	case <-w.Changed():
	case <-time.After(2 * time.Minute):
		t.Fatalf("not told of: %s", what)
	}
}

// quiet checks that a script's changes are not signalled. Messages take less than a millisecond, so
// a false alarm would come long before the wait is over.
func quiet(t *testing.T, ns *nstest.NS, w *kernel.Watch, what, script string) {
	t.Helper()
	const tries = 5 // on a busy machine, a signal of an earlier change may come at any time
	for range tries {
		drain(t, w, time.Second)
		ns.Sh(script)
		select {
		case <-w.Changed():
		case <-time.After(100 * time.Millisecond):
			return
		}
	}
	t.Errorf("told %d times of: %s", tries, what)
}

// drain discards the signals of earlier changes, until a while passes without one.
func drain(t *testing.T, w *kernel.Watch, while time.Duration) {
	t.Helper()
	for {
		select {
		case <-w.Changed():
		case <-time.After(while):
			return
		}
	}
}

func TestWatchTellsOfWhatMatters(t *testing.T) {
	t.Parallel()
	ns, _ := host(t)
	w := watched(t, ns)
	for _, step := range []struct{ what, script string }{
		{"route of ours added", "ip route add 10.5.2.0/24 via 10.5.2.0 dev leno-t onlink proto 108"},
		{"route of ours replaced by hand", "ip route replace 10.5.2.0/24 via 192.0.2.9"},
		{"route of ours back", "ip route replace 10.5.2.0/24 via 10.5.2.0 dev leno-t onlink proto 108"},
		{"route of ours replaced by a static one", "ip route replace 10.5.2.0/24 via 192.0.2.9 proto static"},
		{"route of ours back again", "ip route replace 10.5.2.0/24 via 10.5.2.0 dev leno-t onlink proto 108"},
		{"route of ours deleted", "ip route del 10.5.2.0/24"},
		{"IPv6 route of ours", "ip -6 route add unreachable fd00:5::/48 proto 108"},
		{"IPv6 route of ours over a device", "ip -6 route add fd00:5:0:2::/64 dev leno-t proto 108"},
		{"IPv6 route of ours replaced by hand", "ip -6 route replace fd00:5:0:2::/64 via 2001:db8::9"},
		{"default route", "ip route add default via 192.0.2.9"},
		{"MTU of the default route", "ip route change default via 192.0.2.9 mtu 1400"},
		{"default route of another table", "ip route add default via 192.0.2.9 table 100"},
		{"route to a peer", "ip route add 203.0.113.0/24 via 192.0.2.9 proto static"},
		{"MTU of the route to a peer", "ip route change 203.0.113.0/24 via 192.0.2.9 proto static mtu 1400"},
		{"IPv6 route to a peer, of another table", "ip route add 2001:db8:9::/48 dev eth0 table 70000"},
		{"no way to a peer", "ip route add unreachable 203.0.113.8/29"},
		{"rule", "ip rule add from 192.0.2.1 lookup 100"},
		{"rule deleted", "ip rule del from 192.0.2.1 lookup 100"},
		{"IPv6 rule", "ip -6 rule add from 2001:db8::1 lookup 100"},
		{"neighbour of ours", "ip neigh add 10.5.2.0 lladdr 0a:58:00:00:00:02 dev leno-t"},
		{"neighbour of ours changed to another kind", "ip neigh replace 10.5.2.0 lladdr 0a:58:00:00:00:03 dev leno-t nud stale"},
		{"neighbour of ours back", "ip neigh replace 10.5.2.0 lladdr 0a:58:00:00:00:02 dev leno-t nud permanent"},
		{"neighbour of ours deleted", "ip neigh del 10.5.2.0 dev leno-t"},
		{"forwarding entry of ours", "bridge fdb add 0a:58:00:00:00:02 dev leno-t dst 192.0.2.2"},
		{"forwarding entry of ours changed", "bridge fdb replace 0a:58:00:00:00:02 dev leno-t dst 192.0.2.3"},
		{"forwarding entry of ours changed back", "bridge fdb replace 0a:58:00:00:00:02 dev leno-t dst 192.0.2.2 static"},
		{"forwarding entry of ours deleted", "bridge fdb del 0a:58:00:00:00:02 dev leno-t dst 192.0.2.2"},
		{"forwarding switched on", "sysctl -w net.ipv4.ip_forward=1"},
		{"forwarding switched off", "sysctl -w net.ipv4.ip_forward=0"},
		{"IPv6 forwarding switched on", "sysctl -w net.ipv6.conf.all.forwarding=1"},
		{"IPv6 forwarding switched off", "sysctl -w net.ipv6.conf.all.forwarding=0"},
		{"forwarding of our device", "sysctl -w net.ipv4.conf.leno-t.forwarding=1"},
		{"alias of our device", "ip link set leno-t alias mine"},
		{"checksum offload of our device", "ethtool -K leno-t tx-checksum-ip-generic off"},
		{"MTU of the underlay", "ip link set eth0 mtu 1400"},
		{"address of the underlay", "ip addr add 192.0.2.7/24 dev eth0"},
		{"address of our device with link scope", "ip addr add 169.254.9.9/32 dev leno-t scope link"},
		{"address of our device with link scope deleted", "ip addr del 169.254.9.9/32 dev leno-t"},
		{"address of the underlay with link scope", "ip addr add 198.51.100.17/32 dev eth0 scope link"},
		{"address of our device deleted", "ip addr flush dev leno-t"},
		{"underlay down", "ip link set eth0 down"},
		{"our device renamed", "ip link set leno-t down; ip link set leno-t name other"},
		{"our device made", "ip link add leno-u type vxlan id 8 dstport 8473"},
		{"neighbour of a new device of ours", "ip link set leno-u up; ip neigh add 10.5.3.0 lladdr 0a:58:00:00:00:02 dev leno-u"},
		{"our device deleted", "ip link del leno-u"},
	} {
		drain(t, w, 100*time.Millisecond)
		ns.Sh(step.script)
		told(t, w, step.what)
	}
}

// TestWatchTellsOfForwardingWithoutDevices checks that the host's own forwarding switches are also
// signalled where no device is ours: host-gw has none.
func TestWatchTellsOfForwardingWithoutDevices(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	w := watched(t, ns)
	for _, script := range []string{
		"sysctl -w net.ipv4.ip_forward=1", "sysctl -w net.ipv4.ip_forward=0",
		"sysctl -w net.ipv6.conf.all.forwarding=1", "sysctl -w net.ipv6.conf.all.forwarding=0",
	} {
		drain(t, w, 100*time.Millisecond)
		ns.Sh(script)
		told(t, w, script)
	}
}

func TestWatchIsQuietAboutTheRest(t *testing.T) {
	t.Parallel()
	ns, _ := host(t)
	w := watched(t, ns)
	quiet(t, ns, w, "a container's veth", `ip link add veth1 type veth peer name veth2
ip link add br0 type bridge
ip link set veth1 master br0
ip link set veth1 up; ip link set veth2 up; ip link set br0 up
bridge fdb add 02:00:00:00:00:01 dev veth1 master static
ip neigh add 10.77.0.1 lladdr 02:00:00:00:00:01 dev br0
ip link del veth1
ip link del br0`)
	quiet(t, ns, w, "foreign routes", "ip route add 198.51.100.0/24 via 192.0.2.9 proto static; ip route flush proto static")
	quiet(t, ns, w, "routes of the local table", "ip route add local 203.0.113.9 dev lo; ip route del local 203.0.113.9 dev lo")
	quiet(t, ns, w, "routes that a daemon replaces", "ip route add 198.51.100.0/24 via 192.0.2.9 proto bird; ip route replace 198.51.100.0/24 via 192.0.2.8 proto bird")
	quiet(t, ns, w, "neighbours of the underlay", "ip neigh add 192.0.2.44 lladdr 02:00:00:00:00:01 dev eth0; ip neigh del 192.0.2.44 dev eth0")
	quiet(t, ns, w, "resolving on our device", "ip neigh replace 10.5.9.9 lladdr 02:00:00:00:00:01 dev leno-t nud probe")
	quiet(t, ns, w, "forwarding of another device", "ip link add veth5 type veth peer name veth6; sysctl -w net.ipv4.conf.veth5.forwarding=1; ip link del veth5")
	quiet(t, ns, w, "other settings", `for value in 2 0; do sysctl -w net.ipv4.conf.all.rp_filter=$value; done
for value in 1 0; do sysctl -w net.ipv4.conf.eth0.proxy_arp=$value; done`)
}

// TestWatchSurvivesLostMessages checks that more messages than the buffer holds, while the watch
// does not read, still give a signal, and the watch keeps working.
func TestWatchSurvivesLostMessages(t *testing.T) {
	t.Parallel()
	ns, _ := host(t)
	var w *kernel.Watch
	ns.Do(func() {
		var err error
		w, err = kernel.OpenWatch(kernel.WatchFilter{
			Own:  func(link string) bool { return link == "leno-t" },
			Used: func(string) bool { return false },
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	// 40,000 foreign messages, which alone would give no signal.
	ns.Sh(`for i in $(seq 1 100); do for j in $(seq 1 200); do echo "route add 172.16.$i.$j dev eth0"; echo "route del 172.16.$i.$j dev eth0"; done; done | ip -batch -`)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Errorf("watch: %v", err)
		}
	})
	defer wg.Wait()
	defer cancel()
	told(t, w, "lost messages")
	drain(t, w, 100*time.Millisecond)
	ns.Sh("ip neigh add 10.5.2.0 lladdr 0a:58:00:00:00:02 dev leno-t")
	told(t, w, "neighbour of ours after the loss")
}
