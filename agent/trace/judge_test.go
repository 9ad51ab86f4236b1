package trace

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend/kernel"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// testHost returns host-a with the subnet 10.5.1.0/24 and two peers.
func testHost() Host {
	return Host{Node: "host-a", Networks: []Network{{
		Name: "n", Backend: "vxlan", Port: 8472, Links: []string{"leno-n"},
		Pools: []netip.Prefix{prefix("10.5.0.0/16")},
		Local: api.Local{Subnets: []netip.Prefix{prefix("10.5.1.0/24")}, MTU: 1450,
			Underlay: api.Underlay{Interface: "eth0", Addresses: []netip.Addr{addr("192.0.2.1")}}},
		Peers: []api.Peer{
			{Node: "host-b", Subnets: []netip.Prefix{prefix("10.5.2.0/24")}, PublicIPs: []netip.Addr{addr("192.0.2.2")}},
			{Node: "host-c", Subnets: []netip.Prefix{prefix("10.5.3.0/24")}, PublicIPs: []netip.Addr{addr("192.0.2.3")}},
		},
	}}}
}

// TestLocate: the ends of a path are found by their hosts' subnets and addresses, and wrong requests are refused.
func TestLocate(t *testing.T) {
	for _, tt := range []struct {
		name     string
		from, to string
		protocol string
		port     int
		nodes    string // "source destination"
		code     int
		words    string // of the error
	}{
		{name: "containers", from: "10.5.1.2", to: "10.5.2.2", nodes: "host-a host-b"},
		{name: "from another host", from: "10.5.2.2", to: "10.5.1.2", protocol: "tcp", port: 80, nodes: "host-b host-a"},
		{name: "from the host itself", from: "192.0.2.1", to: "10.5.2.2", nodes: "host-a host-b"},
		{name: "to another host", from: "10.5.1.2", to: "192.0.2.2", nodes: "host-a host-b"},
		{name: "both here", from: "10.5.1.2", to: "10.5.1.3", nodes: "host-a host-a"},
		{name: "neither here", from: "10.5.2.2", to: "10.5.3.2", code: http.StatusNotFound, words: "10.5.2.2 is on host-b and 10.5.3.2 is on host-c"},
		{name: "a subnet without a host", from: "10.5.1.2", to: "10.5.9.2", code: http.StatusNotFound, words: "10.5.9.2"},
		{name: "no address of a container", from: "192.0.2.1", to: "192.0.2.2", code: http.StatusNotFound},
		{name: "the same", from: "10.5.1.2", to: "10.5.1.2", code: http.StatusBadRequest, words: "same address"},
		{name: "two families", from: "10.5.1.2", to: "fd00::2", code: http.StatusBadRequest, words: "family"},
		{name: "no port", from: "10.5.1.2", to: "10.5.2.2", protocol: "udp", code: http.StatusBadRequest, words: "port is 0"},
		{name: "a port of icmp", from: "10.5.1.2", to: "10.5.2.2", port: 7, code: http.StatusBadRequest, words: "port is 7"},
		{name: "an unknown protocol", from: "10.5.1.2", to: "10.5.2.2", protocol: "sctp", port: 7, code: http.StatusBadRequest, words: "sctp"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Locate(testHost(), api.TraceRequest{Source: addr(tt.from), Destination: addr(tt.to), Protocol: tt.protocol, Port: tt.port})
			var refused *api.Error
			if errors.As(err, &refused) != (tt.code > 0) || refused != nil && (refused.Code != tt.code || !strings.Contains(refused.Message, tt.words)) {
				t.Fatalf("error %v, want %d with %q", err, tt.code, tt.words)
			}
			if got := p.Source.Node + " " + p.Destination.Node; err == nil && got != tt.nodes {
				t.Errorf("on %s, want %s", got, tt.nodes)
			}
		})
	}
	if _, err := Run(context.Background(), testHost(), api.TraceRequest{}); err == nil {
		t.Error("a request without addresses is accepted")
	}
}

// goodFacts returns facts of packets from a container of host-a to one of host-b, which arrive.
func goodFacts(t *testing.T) Facts {
	t.Helper()
	p, err := Locate(testHost(), api.TraceRequest{Source: addr("10.5.1.2"), Destination: addr("10.5.2.2")})
	if err != nil {
		t.Fatal(err)
	}
	return Facts{
		Path: p, Node: "host-a", From: goodContainer("10.5.1.2", "10.5.1.1"), Conntrack: forwarding.Connections{Count: 10, Max: 1000},
		Sent:  Sending{What: "5 ICMP echo requests of 64 bytes", Sent: 5, Answered: 5, Full: 1450, FullAnswered: true},
		Route: &Lookup{To: p.Destination.Address, FoundRoute: kernel.FoundRoute{Dst: prefix("10.5.2.0/24"), Link: "leno-n", Own: true, Table: 254}, Device: Link{Name: "leno-n", Up: true}},
		Outer: &Lookup{To: addr("192.0.2.2"), FoundRoute: kernel.FoundRoute{Dst: prefix("192.0.2.0/24"), Link: "eth0", Table: 254}, Device: Link{Name: "eth0", Up: true, Carrier: true, MTU: 1500}, Neighbour: Neighbour{addr("192.0.2.2"), "reachable", "0a:00:00:00:00:02"}},
		Probe: &api.PeerProbe{Node: "host-b", Reached: true},
	}
}

// traceHost makes the underlay address of host-b the destination.
func traceHost(f *Facts) {
	f.Destination.Address, f.Destination.Container, f.Destination.IsOuter = addr("192.0.2.2"), false, true
}

func goodContainer(a, gateway string) *Container {
	return &Container{
		Address: addr(a), Namespace: "/run/netns/web", Link: Link{Name: "eth0", Up: true, Carrier: true, MAC: "0a:00:00:00:01:02", MTU: 1450},
		Route: Lookup{FoundRoute: kernel.FoundRoute{Dst: prefix("0.0.0.0/0"), Link: "eth0", Via: addr(gateway)}, Neighbour: Neighbour{addr(gateway), "reachable", "0a:00:00:00:01:01"}},
		Port:  Link{Name: "veth1", Up: true, Carrier: true, Master: "br0"}, Bridge: Link{Name: "br0", Up: true, MAC: "0a:00:00:00:01:01"},
		Gateway:  []netip.Addr{addr(gateway)},
		Delivery: Lookup{FoundRoute: kernel.FoundRoute{Dst: prefix("10.5.1.0/24"), Link: "br0"}, Neighbour: Neighbour{addr(a), "reachable", "0a:00:00:00:01:02"}},
		Ping:     Sending{Sent: 2, Answered: 2},
	}
}

// TestJudge: each fault is the verdict, at its stage, with its cause and a remedy.
func TestJudge(t *testing.T) {
	rule := &kernel.Rule{Priority: 5270, Text: "from all lookup 52"}
	for _, tt := range []struct {
		name       string
		fault      func(*Facts)
		stage      string // "" for none
		saw, do    string // words
		isAnswered bool   // small packets arrive
	}{
		{name: "none", fault: func(*Facts) {}, isAnswered: true},
		{name: "no namespace", fault: func(f *Facts) {
			*f.From = Container{Address: f.From.Address, Delivery: Lookup{FoundRoute: kernel.FoundRoute{Link: "br0"}, Neighbour: Neighbour{State: "failed"}}, Bridge: Link{Name: "br0", Up: true}}
		}, stage: "container", saw: "no container of this host has 10.5.1.2", do: "leno lease list"},
		{name: "interface down", fault: func(f *Facts) { f.From.Link.Up = false }, stage: "container", saw: "eth0 is down", do: "`nsenter --net=/run/netns/web ip link set eth0 up`"},
		{name: "duplicate address", fault: func(f *Facts) { f.From.Others = []string{"/run/netns/db"} }, stage: "container", saw: "2 containers have the address 10.5.1.2: /run/netns/web and /run/netns/db", do: "restart"},
		{name: "another device has the address", fault: func(f *Facts) { f.From.Delivery.Neighbour.MAC = "0a:00:00:00:00:99" }, stage: "container", saw: "0a:00:00:00:00:99", do: "bridge fdb show"},
		{name: "no default route", fault: func(f *Facts) { f.From.Route = Lookup{Err: unix.ENETUNREACH} }, stage: "container route", saw: "no route to 10.5.2.2", do: "ip route add default via 10.5.1.1 dev eth0"},
		{name: "wrong gateway", fault: func(f *Facts) {
			f.From.Route.Via, f.From.Route.Neighbour = addr("10.5.1.250"), Neighbour{addr("10.5.1.250"), "failed", ""}
		}, stage: "container route", saw: "gateway is 10.5.1.250, which is not an address of this host", do: "ip route replace default via 10.5.1.1 dev eth0"},
		{name: "another device is the gateway", fault: func(f *Facts) { f.From.Route.Neighbour.MAC = "0a:00:00:00:00:99" }, stage: "container route", saw: "answers for the gateway", do: "find the container"},
		{name: "not in the bridge", fault: func(f *Facts) { f.From.Port.Master = "" }, stage: "bridge", saw: "not a port of br0", do: "`ip link set veth1 master br0`"},
		{name: "bridge down", fault: func(f *Facts) { f.From.Bridge.Up = false }, stage: "bridge", saw: "br0 is down", do: "`ip link set br0 up`"},
		{name: "a rule", fault: func(f *Facts) {
			f.Rules.Drops = []foreign.Obstacle{{Where: "nftables table inet x chain c", Rule: "drop", Advice: "accept them there"}}
		}, stage: "rules", saw: `"drop" drops packets from 10.5.1.2 to 10.5.2.2`, do: "accept them there"},
		{name: "a counter", fault: func(f *Facts) {
			f.Rules.Counts = []foreign.Count{{Obstacle: foreign.Obstacle{Where: "iptables table filter chain FORWARD", Rule: "-j DROP", Removal: "iptables -D FORWARD -j DROP", Advice: "accept them"}, Packets: 5}}
		}, stage: "rules", saw: "dropped 5 packets while 5 ICMP echo requests of 64 bytes left", do: "remove it (`iptables -D FORWARD -j DROP`)"},
		{name: "a counter of these packets and others", fault: func(f *Facts) {
			f.Rules.Counts = []foreign.Count{{Obstacle: foreign.Obstacle{Where: "c", Rule: "-j DROP", Advice: "accept them"}, Packets: 9, IsCertain: true}}
		}, stage: "rules", saw: "dropped 9 packets while 5 ICMP echo requests of 64 bytes left", do: "accept them"},
		{name: "a counter of fewer packets", fault: func(f *Facts) { f.Rules.Counts = []foreign.Count{{Packets: 4, IsCertain: true}} }, stage: "answer", do: "on host-b"},
		{name: "a counter of other packets, perhaps", fault: func(f *Facts) { f.Rules.Counts = []foreign.Count{{Packets: 9}} }, stage: "answer", do: "on host-b"},
		{name: "full conntrack table", fault: func(f *Facts) { f.Conntrack.Count = 1000 }, stage: "conntrack", saw: "1000 of 1000", do: "nf_conntrack_max=4000"},
		{name: "forwarding is off", fault: func(f *Facts) { f.Switches = "net.ipv4.ip_forward" }, stage: "forwarding", saw: "is 0", do: "`sysctl -w net.ipv4.ip_forward=1`"},
		{name: "rp_filter", fault: func(f *Facts) {
			f.Refused = []doctor.Refusal{{Source: f.Source.Address, Link: "br0", Mode: "1", ReturnLink: "ts0"}}
		}, stage: "rp_filter", saw: "the route back is over ts0", do: "rp_filter=2"},
		{name: "rp_filter of a VLAN", fault: func(f *Facts) {
			f.Refused = []doctor.Refusal{{Source: f.Source.Address, Link: "br0.7", Mode: "1"}}
		}, stage: "rp_filter", do: "`sysctl -w net.ipv4.conf.br0/7.rp_filter=2`"},
		{name: "rp_filter that is loose", fault: func(f *Facts) {
			f.Refused = []doctor.Refusal{{Source: f.Source.Address, Link: "br0", Mode: "2"}}
		}, stage: "rp_filter", saw: "there is no route back", do: "give the host a route to 10.5.1.2, or `sysctl -w net.ipv4.conf.br0.rp_filter=0 net.ipv4.conf.all.rp_filter=0`"},
		{name: "the bridge has no address", fault: func(f *Facts) {
			f.From.Gateway, f.From.Delivery = nil, Lookup{FoundRoute: kernel.FoundRoute{Link: "eth0"}, Neighbour: Neighbour{addr("192.0.2.254"), "reachable", "0a:00:00:00:00:fe"}}
			f.From.Route.Neighbour = Neighbour{addr("10.5.1.1"), "failed", ""}
		}, stage: "bridge", saw: "br0 has no address in 10.5.1.0/24", do: "`ip addr add 10.5.1.1/24 dev br0`"},
		{name: "the bridge has no address, and no default route", fault: func(f *Facts) {
			f.From.Gateway, f.From.Route = nil, Lookup{Err: unix.ENETUNREACH}
		}, stage: "container route", saw: "no route to 10.5.2.2", do: "give br0 an address, and set the default route in the configuration"},
		{name: "a more specific route", fault: func(f *Facts) { f.Route.Own, f.Route.Link, f.Route.Dst = false, "lan0", prefix("10.5.2.0/25") }, stage: "route", saw: "leave by lan0", do: "`ip route del 10.5.2.0/25 dev lan0`"},
		{name: "a routing rule", fault: func(f *Facts) {
			f.Route.Own, f.Route.Link, f.Route.Table, f.Route.Rule = false, "ts0", 52, rule
		}, stage: "route", saw: "the routing rule 5270 (from all lookup 52)", do: "`ip rule add to 10.5.0.0/16 lookup main priority 5269`"},
		{name: "a route that refuses", fault: func(f *Facts) {
			f.Route = &Lookup{FoundRoute: kernel.FoundRoute{Table: 254, Rejecting: &kernel.RejectingRoute{Type: "blackhole", Dst: prefix("10.5.2.0/25")}}, Err: unix.EINVAL}
		}, stage: "route", saw: "the route blackhole 10.5.2.0/25 of another program refuses packets to 10.5.2.2", do: "`ip route del blackhole 10.5.2.0/25`"},
		{name: "a wider route", fault: func(f *Facts) {
			f.Route.Own, f.Route.Link, f.Route.Dst = false, "eth0", prefix("0.0.0.0/0")
		}, stage: "route", saw: "packets to 10.5.2.2 leave by eth0 (route to 0.0.0.0/0): leno's route to 10.5.2.0/24 is missing", do: "see the check `routes` of `leno status`"},
		{name: "a wider route that refuses", fault: func(f *Facts) {
			f.Route = &Lookup{FoundRoute: kernel.FoundRoute{Table: 254, Rejecting: &kernel.RejectingRoute{Type: "prohibit", Dst: prefix("10.0.0.0/8")}}, Err: unix.EACCES}
		}, stage: "route", saw: "no route to 10.5.2.2", do: "see the check `routes` of `leno status`"},
		{name: "a wider route that refuses packets to a host", fault: func(f *Facts) {
			traceHost(f)
			f.Route = &Lookup{FoundRoute: kernel.FoundRoute{Table: 254, Rejecting: &kernel.RejectingRoute{Type: "prohibit", Dst: prefix("192.0.2.0/24")}}, Err: unix.EACCES}
		}, stage: "route", saw: "the route prohibit 192.0.2.0/24 of another program refuses packets to 192.0.2.2", do: "give this host a route to 192.0.2.2/32: leno makes none"},
		{name: "a route that refuses packets to a host", fault: func(f *Facts) {
			traceHost(f)
			f.Route = &Lookup{FoundRoute: kernel.FoundRoute{Table: 254, Rejecting: &kernel.RejectingRoute{Type: "blackhole", Dst: prefix("192.0.2.2/32")}}, Err: unix.EINVAL}
		}, stage: "route", saw: "the route blackhole 192.0.2.2/32 of another program", do: "`ip route del blackhole 192.0.2.2/32`"},
		{name: "alloc, and a wider route that refuses", fault: func(f *Facts) {
			f.Network.Backend, f.Probe = "alloc", nil
			f.Route = &Lookup{FoundRoute: kernel.FoundRoute{Table: 254, Rejecting: &kernel.RejectingRoute{Type: "prohibit", Dst: prefix("10.0.0.0/8")}}, Err: unix.EACCES}
		}, stage: "route", saw: "the route prohibit 10.0.0.0/8 of another program", do: "give this host a route to 10.5.2.0/24: leno makes none"},
		{name: "a skipped peer", fault: func(f *Facts) {
			f.peer().Skipped = "behind a gateway"
			f.Route = &Lookup{Err: unix.EHOSTUNREACH}
		}, stage: "route", saw: "host-b is not in the datapath: behind a gateway", do: "see the check `routes` of `leno status`"},
		{name: "alloc, and packets are lost elsewhere", fault: func(f *Facts) {
			f.Network.Backend, f.Probe = "alloc", nil
			f.Route.Own, f.Route.Link, f.Route.Dst, f.Route.Device.Name = false, "eth0", prefix("0.0.0.0/0"), "eth0"
		}, stage: "answer", saw: "no answer", do: "on host-b"},
		{name: "alloc, and no route", fault: func(f *Facts) {
			f.Network.Backend, f.Probe = "alloc", nil
			f.Route = &Lookup{Err: unix.ENETUNREACH}
		}, stage: "route", saw: "no route to 10.5.2.2", do: "give this host a route to 10.5.2.0/24"},
		{name: "no route to a container of this host but the default route", fault: func(f *Facts) {
			f.From.Delivery = Lookup{FoundRoute: kernel.FoundRoute{Dst: prefix("0.0.0.0/0"), Link: "eth0", Table: 254}}
		}, stage: "route to container", saw: "no route to its own container 10.5.1.2 but that to 0.0.0.0/0", do: "`ip -brief address`"},
		{name: "no route", fault: func(f *Facts) { f.Route = &Lookup{Err: unix.EHOSTUNREACH} }, stage: "route", saw: "no route to 10.5.2.2", do: "routes"},
		{name: "a routing rule for the underlay", fault: func(f *Facts) { f.Outer.Link, f.Outer.Table, f.Outer.Rule = "tun0", 52, rule }, stage: "underlay", saw: "leave by tun0 instead of eth0", do: "`ip rule add to 192.0.2.2 lookup main priority 5269`"},
		{name: "a silent host", fault: func(f *Facts) { f.Outer.Neighbour.State = "failed" }, stage: "underlay", saw: "nothing answers for 192.0.2.2 on eth0", do: "host-b is running"},
		{name: "a closed port", fault: func(f *Facts) {
			f.Probe.Reached = false
			f.Findings = []api.Finding{{Check: "port", Status: api.FindingFault, Peer: "host-b", Saw: "UDP port 8472 is closed", Do: "open it"}}
		}, stage: "tunnel", saw: "port 8472 is closed", do: "open it"},
		{name: "a small MTU", fault: func(f *Facts) {
			f.Sent.FullAnswered = false
			f.Findings = []api.Finding{{Check: "path_mtu", Status: api.FindingFault, Peer: "host-b", Saw: "1400", Do: "lower it"}}
		}, stage: "tunnel", saw: "1400", do: "lower it", isAnswered: true},
		{name: "a small MTU does not lose small packets", fault: func(f *Facts) {
			f.Findings = []api.Finding{{Check: "path_mtu", Status: api.FindingFault, Peer: "host-b", Saw: "1400", Do: "lower it"}}
		}, stage: "answer", do: "on host-b"},
		{name: "the tunnel is silent", fault: func(f *Facts) { f.Probe.Reached = false }, stage: "tunnel", saw: "does not answer through the tunnel", do: "leno doctor"},
		{name: "the answers leave elsewhere", fault: func(f *Facts) { f.From.Delivery.Link, f.From.Delivery.Rule = "ts0", rule }, stage: "route to container", saw: "leave by ts0 instead of br0", do: "ip rule add"},
		{name: "behind the tunnel", fault: func(*Facts) {}, stage: "answer", saw: "no answer", do: "run `sudo leno trace 10.5.1.2 10.5.2.2` on host-b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := goodFacts(t)
			if !tt.isAnswered {
				f.Sent.Answered, f.Sent.Full = 0, 0
			}
			tt.fault(&f)
			got := Judge(f)
			hop, isLost := got.Lost()
			if hop.Stage != tt.stage || isLost != (tt.stage != "") {
				t.Fatalf("the verdict is %+v, want %q: %+v", hop, tt.stage, got.Stages)
			}
			if !strings.Contains(hop.Saw, tt.saw) || !strings.Contains(hop.Do, tt.do) || isLost && (hop.Do == "" || hop.Node == "" || hop.Where == "") {
				t.Errorf("%+v, want %q and %q", hop, tt.saw, tt.do)
			}
			if strings.Contains(hop.Do, "ip route del 0.0.0.0/0") || strings.Contains(hop.Do, "ip route del prohibit") {
				t.Errorf("%q removes a route that is wider than the pool", hop.Do)
			}
			if want := map[bool]string{true: api.ArrivedYes, false: api.ArrivedNo}[tt.isAnswered]; got.Arrived != want {
				t.Errorf("arrived: %s, want %s", got.Arrived, want)
			}
			// What was answered is not lost, whatever a stage says.
			if f.Sent.Answered = 5; tt.name != "a small MTU" {
				if hop, isLost := Judge(f).Lost(); isLost {
					t.Errorf("packets are answered, and the verdict is %+v", hop)
				}
			}
		})
	}
}

// TestRefused: a refused connection does not prove that packets reach the other host.
func TestRefused(t *testing.T) {
	f := goodFacts(t)
	f.Protocol, f.Port = "tcp", 80
	f.Sent = Sending{What: "a connection to TCP port 80", Sent: 1, IsRefused: true}
	got := Judge(f)
	last := got.Stages[len(got.Stages)-1]
	if got.Arrived != api.ArrivedUnknown || last.Status != api.HopUnknown || !strings.Contains(last.Saw, "refused: no program there has the port, or a rule") {
		t.Errorf("arrived %s, %+v", got.Arrived, last)
	}
	rule := foreign.Obstacle{Where: "iptables table filter chain FORWARD", Rule: "-p tcp --dport 80 -j REJECT", Advice: "accept them"}
	f.Rules.Counts = []foreign.Count{{Obstacle: rule, Packets: 1, IsCertain: true}}
	got = Judge(f)
	if hop, ok := got.Lost(); got.Arrived != api.ArrivedNo || !ok || hop.Stage != "rules" || hop.Do != rule.Advice {
		t.Errorf("arrived %s, %+v", got.Arrived, hop)
	}
}

// TestJudgeDestination: on the host of the destination, the stages are those of the packets' arrival and of their answers.
func TestJudgeDestination(t *testing.T) {
	p, err := Locate(testHost(), api.TraceRequest{Source: addr("10.5.2.2"), Destination: addr("10.5.1.2"), Protocol: "tcp", Port: 80})
	if err != nil {
		t.Fatal(err)
	}
	f := goodFacts(t)
	f.Path, f.To, f.From, f.Sent, f.Route = p, f.From, nil, Sending{}, nil
	f.Back = &Lookup{To: p.Source.Address, FoundRoute: kernel.FoundRoute{Dst: prefix("10.5.2.0/24"), Link: "leno-n", Own: true, Table: 254}, Device: Link{Name: "leno-n", Up: true}}
	got := Judge(f)
	var stages []string
	for _, h := range got.Stages {
		if stages = append(stages, h.Stage); h.Status != api.HopOK {
			t.Errorf("%+v", h)
		}
	}
	const want = "underlay tunnel conntrack rules bridge container container route route back"
	if strings.Join(stages, " ") != want || got.Arrived != api.ArrivedUnknown || got.Arguments() != "10.5.2.2 10.5.1.2 tcp/80" {
		t.Errorf("%q, arrived %s: %s", stages, got.Arrived, got.Arguments())
	}
	f.To.Route = Lookup{Err: unix.ENETUNREACH}
	if hop, _ := Judge(f).Lost(); hop.Stage != "container route" || !strings.Contains(hop.Saw, "no route to 10.5.2.2") {
		t.Errorf("%+v", hop)
	}
	// A process without rights knows nothing of the container.
	f.To = &Container{Address: p.Destination.Address, Err: errors.New("no right"), Delivery: f.To.Delivery, Bridge: f.To.Bridge}
	for _, h := range Judge(f).Stages {
		if h.Stage == "container" && (h.Status != api.HopUnknown || !strings.Contains(h.Do, "sudo leno trace")) || h.Status == api.HopLost {
			t.Errorf("%+v", h)
		}
	}
}
