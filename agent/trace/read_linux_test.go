package trace

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

func TestMain(m *testing.M) {
	served, err := nstest.Serve(func(string) error { return nil })
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case served:
		return
	}
	nstest.RunMoreAtOnce()
	m.Run()
}

// newContainer connects a namespace with a process, as that of a container, to the bridge of a host.
func newContainer(host *nstest.NS, t *testing.T, port, address string) *nstest.NS {
	t.Helper()
	ns := nstest.New(t)
	nstest.Join(nstest.Joint{NS: host, Link: port}, nstest.Joint{NS: ns, Link: "eth0", Addrs: []string{address}})
	host.Sh("ip link set " + port + " master br0")
	ns.Sh("ip route add default via 10.5.1.1")
	ns.Start("a container")
	return ns
}

// TestRead places faults in namespaces: a host with a container, and another host that has the destination. Each fault is
// the verdict, at its stage, and the packets that are sent are counted by the rule that drops them.
func TestRead(t *testing.T) {
	for _, tt := range []struct {
		name            string
		host, container string // scripts
		other           string // script on the other host
		stage           string // "" if packets arrive
		saw             string
	}{
		{name: "none"},
		{name: "no default route", container: "ip route del default", stage: "container route", saw: "no route to 10.5.2.2"},
		{name: "wrong gateway", container: "ip route replace default via 10.5.1.250", stage: "container route", saw: "gateway is 10.5.1.250"},
		{name: "interface down", container: "ip link set eth0 down", stage: "container", saw: "eth0 is down"},
		{name: "the container's prefix is too long", container: "ip route del default; ip addr add 10.5.1.2/16 dev eth0", stage: "container route", saw: "nothing answers for 10.5.2.2"},
		{name: "not in the bridge", host: "ip link set veth1 nomaster", stage: "bridge", saw: "not a port of br0"},
		{name: "a rule of iptables", host: "iptables-nft -I FORWARD -s 10.5.1.2 -j DROP", stage: "rules", saw: `"-s 10.5.1.2/32 -j DROP" dropped 5 packets`},
		{name: "a rule for answers", host: "iptables-nft -I FORWARD -d 10.5.1.2 -j DROP", stage: "rules", saw: `"-d 10.5.1.2/32 -j DROP" dropped 5 packets`},
		{name: "a rule of nftables", host: "nft add table inet x; nft 'add chain inet x c { type filter hook forward priority 0; }'; nft add rule inet x c ip daddr 10.5.2.2 drop",
			stage: "rules", saw: `"ip daddr 10.5.2.2 drop" drops packets from 10.5.1.2 to 10.5.2.2`},
		{name: "a policy", host: "iptables-nft -P FORWARD DROP", stage: "rules", saw: `"policy DROP"`},
		{name: "forwarding is off", host: "sysctl -qw net.ipv4.ip_forward=0", stage: "forwarding", saw: "net.ipv4.ip_forward"},
		{name: "a more specific route", host: "ip link add lan0 type bridge; ip link set lan0 up; ip route add 10.5.2.0/25 dev lan0", stage: "route", saw: "leave by lan0: the route to 10.5.2.0/25"},
		{name: "leno's route is missing", host: "ip route del 10.5.2.0/24; ip route add unreachable 10.5.0.0/16 metric 16777216 proto 108", stage: "route", saw: "the kernel has no route to 10.5.2.2"},
		{name: "a routing rule", host: "ip link add lan0 type bridge; ip link set lan0 up; ip route add 10.5.2.0/24 dev lan0 table 52; ip rule add pref 90 to 10.5.2.0/24 lookup 52",
			stage: "route", saw: "the routing rule 90 (from all to 10.5.2.0/24 lookup 52)"},
		{name: "strict reverse path filter", host: "ip link add lan0 type bridge; ip link set lan0 up; sysctl -qw net.ipv4.conf.br0.rp_filter=1; ip route add 10.5.1.2/32 dev lan0", stage: "rp_filter", saw: "the route back is over lan0"},
		{name: "the other host is gone", other: "ip link set eth0 down", stage: "underlay", saw: "eth0 is down or has no carrier"},
		{name: "the destination is gone", other: "ip addr del 10.5.2.2/24 dev lo", stage: "answer", saw: "no answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			host, other := nstest.New(t), nstest.New(t)
			nstest.Join(nstest.Joint{NS: host, Link: "eth0", Addrs: []string{"192.0.2.1/24"}}, nstest.Joint{NS: other, Link: "eth0", Addrs: []string{"192.0.2.2/24"}})
			host.Sh("sysctl -qw net.ipv4.ip_forward=1; ip link add br0 type bridge; ip addr add 10.5.1.1/24 dev br0; ip link set br0 up; ip route add 10.5.2.0/24 via 192.0.2.2 proto 108")
			other.Sh("ip addr add 10.5.2.2/24 dev lo; ip route add 10.5.1.0/24 via 192.0.2.1")
			container := newContainer(host, t, "veth1", "10.5.1.2/24")
			host.Sh(tt.host)
			container.Sh(tt.container)
			other.Sh(tt.other)
			h := testHost()
			h.Networks[0].Local.MTU = 1500
			h.Networks[0].Backend, h.Networks[0].Port, h.Networks[0].Links = "host-gw", 0, []string{"eth0"}
			out := runIn(t, host, h, api.TraceRequest{Source: addr("10.5.1.2"), Destination: addr("10.5.2.2")})
			hop, isLost := out.Lost()
			if hop.Stage != tt.stage || !strings.Contains(hop.Saw, tt.saw) || isLost == (out.Arrived == api.ArrivedYes) {
				t.Errorf("the verdict is %+v, arrived %s (%s), want %q at %q: %+v", hop, out.Arrived, out.Why, tt.saw, tt.stage, out.Stages)
			}
		})
	}
}

// TestNoContainer: without a container and a bridge, no route is missed but the one that the container would make. The
// host's route to the other end is found, and that for the answers from there.
func TestNoContainer(t *testing.T) {
	host, other := nstest.New(t), nstest.New(t)
	nstest.Join(nstest.Joint{NS: host, Link: "eth0", Addrs: []string{"192.0.2.1/24"}}, nstest.Joint{NS: other, Link: "eth0", Addrs: []string{"192.0.2.2/24"}})
	host.Sh("sysctl -qw net.ipv4.ip_forward=1; ip route add 10.5.2.0/24 via 192.0.2.2 proto 108")
	other.Sh("ip addr add 10.5.2.2/24 dev lo; ip route add 10.5.1.0/24 via 192.0.2.1")
	h := testHost()
	h.Networks[0].Backend, h.Networks[0].Port, h.Networks[0].Links = "host-gw", 0, []string{"eth0"}
	for _, request := range []api.TraceRequest{
		{Source: addr("10.5.1.2"), Destination: addr("10.5.2.2")},
		{Source: addr("10.5.2.2"), Destination: addr("10.5.1.2")},
	} {
		out := runIn(t, host, h, request)
		for _, hop := range out.Stages {
			if (hop.Status == api.HopLost) != (hop.Stage == "container") {
				t.Errorf("%s to %s: %+v", request.Source, request.Destination, hop)
			}
		}
		if hop, isLost := out.Lost(); !isLost || !strings.Contains(hop.Saw, "no container of this host has 10.5.1.2") {
			t.Errorf("the verdict is %+v", hop)
		}
	}
}

// runIn runs a trace in the namespace of a host.
func runIn(t *testing.T, host *nstest.NS, h Host, r api.TraceRequest) (out api.Trace) {
	t.Helper()
	host.Do(func() {
		var err error
		if out, err = Run(context.Background(), h, r); err != nil {
			t.Error(err)
		}
	})
	return out
}

// TestContainers: two containers of one host reach each other, the second address of two containers is found, and so is
// the container that packets from another host are for. Closed ports refuse, as rules do.
func TestContainers(t *testing.T) {
	t.Parallel()
	host := nstest.New(t)
	host.Sh("ip link add br0 type bridge; ip addr add 10.5.1.1/24 dev br0; ip link set br0 up")
	newContainer(host, t, "veth1", "10.5.1.2/24")
	newContainer(host, t, "veth2", "10.5.1.3/24")
	h := testHost()
	h.Networks[0].Local.MTU = 1500
	request := api.TraceRequest{Source: addr("10.5.1.2"), Destination: addr("10.5.1.3")}
	for _, protocol := range []string{"icmp", "tcp", "udp"} {
		if request.Protocol = protocol; protocol != "icmp" {
			request.Port = 7
		}
		out := runIn(t, host, h, request)
		var stages []string
		for _, hop := range out.Stages {
			stages = append(stages, hop.Stage+" "+hop.Status)
		}
		arrived, answer := api.ArrivedYes, "answer ok"
		if protocol != "icmp" {
			arrived, answer = api.ArrivedUnknown, "answer unknown"
		}
		want := []string{"container ok", "container route ok", "bridge ok", "rules ok", "bridge ok", "container ok", "container route ok", answer}
		if out.Arrived != arrived || !slices.Equal(stages, want) {
			t.Errorf("%s: arrived %s (%s), %q", protocol, out.Arrived, out.Why, stages)
		}
	}
	newContainer(host, t, "veth3", "10.5.1.3/24")
	out := runIn(t, host, h, api.TraceRequest{Source: addr("10.5.2.2"), Destination: addr("10.5.1.3")})
	if hop := out.Stages[slices.IndexFunc(out.Stages, func(h api.TraceHop) bool { return h.Stage == "container" })]; !strings.Contains(hop.Saw, "2 containers have the address 10.5.1.3") {
		t.Errorf("%+v", hop)
	}
	out = runIn(t, host, h, api.TraceRequest{Source: addr("10.5.1.2"), Destination: netip.MustParseAddr("10.5.1.9")})
	if hop, _ := out.Lost(); hop.Stage != "container" || !strings.Contains(hop.Saw, "no container of this host has 10.5.1.9") {
		t.Errorf("%+v", out.Stages)
	}
}
