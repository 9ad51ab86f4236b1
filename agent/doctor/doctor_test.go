package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/registry"
)

var (
	now   = time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	here  = netip.MustParseAddr("192.0.2.11")
	there = netip.MustParseAddr("192.0.2.12")
)

func way(path string, answered bool) api.ProbedWay {
	n := map[bool]int{true: 3}[answered]
	return api.ProbedWay{Path: path, MTU: 1450, Answer: map[bool]string{true: echoReply}[answered], Largest: 1450 * n / 3,
		Small: api.ProbedSize{Bytes: 64, Sent: 3, Answered: n, MinMS: 0.1, MaxMS: 0.2}, Full: api.ProbedSize{Bytes: 1450, Sent: n, Answered: n}}
}

// healthyHost returns a host on which nothing is wrong, with one peer that answers.
func healthyHost() Facts {
	lease := registry.Lease{Network: "n", Node: "host-a", NodeID: "1", Session: "s", Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")},
		PublicIPs: []netip.Addr{here}, MTU: 1450, Backend: registry.Backend{Type: "vxlan", Object: json.RawMessage(`{"type":"vxlan","vtep_mac":"0a:00:00:00:00:01"}`)}}
	record := lease
	return Facts{Node: "host-a", Active: true,
		Store: Store{Name: "consul", Rights: []registry.Right{{Rule: "all", For: "everything", Granted: true}}},
		Networks: []Network{{Name: "n", Backend: "vxlan", Pools: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}, Subnets: lease.Subnets, MTU: 1450, Link: "leno-n", Port: 8472,
			Checks:   Checks{Network: passing("network"), Underlay: passing("underlay"), Lease: passing("lease"), Conflict: passing("conflict"), Device: passing("device"), Routes: passing("routes")},
			Underlay: Underlay{Interface: "eth0", MTU: 1500, Public: []netip.Addr{here}, Own: []netip.Addr{here}, OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
			Lease:    Lease{Held: true, Own: lease, Record: &record, Renewed: now.Add(-4 * time.Second), TTL: 10 * time.Second, Now: now},
			Device:   Device{Wanted: true, Exists: true, Up: true, Kind: "vxlan", MAC: "0a:00:00:00:00:01", MTU: 1450},
			Peers: []Peer{{Node: "host-b", Held: true, Public: there, Port: 8472, Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.2.0/24")}, Datagrams: Yes,
				Probe: &api.PeerProbe{Node: "host-b", Held: true, Reached: true, Ways: []api.ProbedWay{way(api.PathOverlay, true), way(api.PathUnderlay, true)}}}},
			Probed: 1}}}
}

func passing(name string) api.Check { return api.Check{Name: name, Status: api.Passing} }

func failing(name, reason string) api.Check {
	return api.Check{Name: name, Status: api.Critical, Reason: reason}
}

// TestJudge checks the findings for each fact, in order, and that findings that follow from others are left out. The
// words of the first finding follow its check.
func TestJudge(t *testing.T) {
	blocked := func(inbound bool) foreign.Blockade {
		return foreign.Blockade{Path: foreign.UnderlayPath{Network: "n", Own: here, Peer: there, Port: 8472, PeerPort: 8472}, Inbound: inbound, Where: "iptables table filter chain INPUT", Rule: "policy DROP"}
	}
	silence := func(n *Network, underlay bool, there, back string) {
		p := n.Peers[0].Probe
		p.Ways = []api.ProbedWay{way(api.PathOverlay, false), way(api.PathUnderlay, underlay)}
		if there != "" {
			p.ToPeer, p.FromPeer = &api.ProbedDirection{State: there}, &api.ProbedDirection{State: back}
		}
	}
	tun := &fs.PathError{Op: "open", Path: "/dev/net/tun", Err: unix.ENOENT}
	for _, tt := range []struct {
		name   string
		change func(f *Facts, n *Network)
		want   string // statuses and checks of all findings that are not ok
		words  string // of the first finding
	}{
		{"nothing", func(*Facts, *Network) {}, "", ""},
		{"no peers", func(_ *Facts, n *Network) { n.Peers, n.Probed = nil, 0 }, "", ""},
		{"the store away, renewed before", func(f *Facts, n *Network) {
			f.Store.Err, n.Lease.Record, n.Lease.RecordErr = registry.ErrUnavailable, nil, registry.ErrUnavailable
		}, "fault consul, warning lease", "packets do not depend on it"},
		{"the store away for long", func(f *Facts, n *Network) {
			f.Store.Err, n.Lease.Record, n.Lease.RecordErr, n.Lease.Renewed = registry.ErrUnavailable, nil, registry.ErrUnavailable, now.Add(-21*time.Second)
		}, "fault consul, fault lease", ""},
		{"no such token", func(f *Facts, _ *Network) {
			f.Store.Err, f.Store.RightsErr, f.Store.Rights = registry.ErrDenied, registry.ErrDenied, nil
		}, "fault consul", "policy.hcl"},
		{"refused by Consul's configuration", func(f *Facts, _ *Network) {
			f.Store.Err = &registry.RefusedError{Err: errors.New("403"), Remedy: "unblock the endpoints"}
		}, "fault consul", "unblock the endpoints"},
		{"etcd away for long", func(f *Facts, n *Network) {
			f.Store = Store{Kind: "etcd", Name: "etcd at 192.0.2.1:2379", Err: registry.ErrUnavailable}
			n.Lease.Record, n.Lease.RecordErr = nil, registry.ErrUnavailable
			n.Lease.Renewed = now.Add(-21 * time.Second)
		}, "fault etcd, fault lease", "etcdctl endpoint status"},
		{"rights in etcd", func(f *Facts, _ *Network) {
			f.Store = Store{Kind: "etcd", Name: "etcd", Err: registry.ErrDenied}
		}, "fault etcd", "etcd.username"},
		{"credentials that Kubernetes does not accept", func(f *Facts, _ *Network) {
			f.Store = Store{Kind: "kubernetes", Name: "Kubernetes", Err: errors.Join(registry.ErrToken, registry.ErrDenied)}
		}, "fault kubernetes", "renew the credentials"},
		{"a token file that cannot be used", func(f *Facts, _ *Network) {
			err := errors.Join(registry.ErrToken, registry.ErrDenied)
			f.Store.Err, f.Store.RightsErr, f.Store.Rights = err, err, nil
		}, "fault consul", "write the agent's token into that file"},
		{"no login, so no token", func(f *Facts, _ *Network) {
			err := &registry.LoginError{Err: errors.New("consul login: no such method"), Remedy: "create it"}
			f.Store.Err, f.Store.RightsErr, f.Store.Rights = err, err, nil
			f.Health = []api.Check{{Name: CheckLogin, Status: api.Warning, Reason: err.Error()}}
		}, "fault consul", "create it"},
		{"no login, and the token from before", func(f *Facts, _ *Network) {
			f.Health = []api.Check{{Name: CheckLogin, Status: api.Warning, Reason: "consul login: no such method; create it"}}
		}, "warning login", "create it"},
		{"a right missing says more than that it was refused", func(f *Facts, _ *Network) { f.Store.Err, f.Store.Rights[0].Granted = registry.ErrDenied, false }, "fault acl", "everything"},
		{"no token", func(f *Facts, _ *Network) { f.Store.NoToken, f.Store.Rights[0].Granted = true, false }, "fault acl", "the agent has no token, and without one, it lacks the rights needed everything create a token"},
		{"no token, and none is needed", func(f *Facts, _ *Network) { f.Store.NoToken = true }, "", ""},
		{"the record is gone", func(_ *Facts, n *Network) { n.Lease.Record = nil }, "fault lease", "deleted or revoked"},
		{"the session has ended", func(_ *Facts, n *Network) { n.Lease.Record.Session = "" }, "fault lease", "has ended"},
		{"another session has the lock", func(_ *Facts, n *Network) { n.Lease.Record.Session = "t" }, "fault lease", "session t"},
		{"not leased, for another host has the name", func(_ *Facts, n *Network) {
			n.Lease, n.Checks.Lease = Lease{}, failing("lease", "waiting")
			n.Checks.Conflict = failing("conflict", registry.ErrDuplicateNode.Error())
		}, "fault conflict", "node_name"},
		{"no underlay, for others can read the key file", func(_ *Facts, n *Network) {
			n.Checks.Underlay = failing("underlay", "waiting for the underlay: key_file: run chmod 600 /k")
		}, "fault underlay", "run chmod 600 /k do what it says"},
		{"not leased, for the store refuses it", func(_ *Facts, n *Network) {
			n.Lease, n.Checks.Lease = Lease{}, failing("lease", "waiting for a lease: consul's configuration forbids it; allow it")
		}, "fault lease", "waiting for a lease: consul's configuration forbids it allow it"},
		{"not renewed, for the store refuses it", func(_ *Facts, n *Network) {
			n.Checks.Lease = api.Check{Name: "lease", Status: api.Warning, Reason: "not renewed, packets flow: consul's configuration forbids it; allow it"}
		}, "warning lease", "not renewed, packets flow: consul's configuration forbids it allow it"},
		{"lost, for the store refuses it", func(_ *Facts, n *Network) {
			n.Checks.Lease = api.Check{Name: "lease", Status: api.Warning, Reason: "waiting for a lease: consul's configuration forbids it; allow it"}
			n.Lease.Record.Session = ""
		}, "fault lease", "has ended; waiting for a lease: consul's configuration forbids it allow it"},
		{"the last switch ended in the future", func(_ *Facts, n *Network) {
			n.Checks.Others = []api.Check{{Name: "keys", Status: api.Warning, Reason: "the last switch ended in the future; set the clocks"}}
		}, "warning keys", "the last switch ended in the future set the clocks"},
		{"a cloned machine", func(f *Facts, n *Network) {
			n.Lease, n.Checks.Lease, f.DataDir = Lease{}, failing("lease", "waiting"), "/var/lib/leno"
			n.Checks.Conflict = failing("conflict", "was the data_dir copied?")
		}, "fault conflict", "stop the agent, remove the state of the original with `rm -r /var/lib/leno`"},
		{"a cloned machine with the token of the original", func(f *Facts, n *Network) {
			f.Store.Rights = append(f.Store.Rights, registry.Right{Rule: `session "host-b" { policy = "write" }`})
			n.Lease, n.Checks.Lease, n.Checks.Conflict = Lease{}, failing("lease", "waiting"), failing("conflict", "was the data_dir copied?")
		}, "fault conflict", "and start it again with a token of its own"},
		{"a conflict, and a right that no host has", func(f *Facts, n *Network) {
			f.Store.Rights[0].Granted = false
			n.Lease, n.Checks.Lease, n.Checks.Conflict = Lease{}, failing("lease", "waiting"), failing("conflict", "was the data_dir copied?")
		}, "fault acl, fault conflict", "everything"},
		{"a full table of connections explains the peers", func(f *Facts, n *Network) {
			f.Connections = forwarding.Connections{Count: 995, Max: 1000}
			silence(n, false, "", "")
		}, "fault conntrack", "`sysctl -w net.netfilter.nf_conntrack_max=4000`"},
		{"a table of connections with room", func(f *Facts, _ *Network) { f.Connections = forwarding.Connections{Count: 980, Max: 1000} }, "", ""},
		{"a routing rule explains the peer", func(_ *Facts, n *Network) {
			n.Peers[0].Detour = &kernel.Detour{Node: "host-b", Dst: netip.MustParseAddr("10.5.2.0"), Link: "ts0", Table: 52, Rule: &kernel.Rule{Priority: 5270, Text: "from all lookup 52"}}
			n.Peers[0].Refusals = []Refusal{{Source: netip.MustParseAddr("10.5.2.0"), Dest: netip.MustParseAddr("10.5.1.0"), Link: "leno-n", Mode: "1", ReturnLink: "ts0"}}
			silence(n, true, api.DirectionLost, api.DirectionPasses)
		}, "fault routes", "packets to 10.5.2.0 of host-b leave by ts0: a routing rule that is not leno's takes precedence, 5270: from all lookup 52; `ip rule add to 10.5.0.0/16 lookup main priority 5269`"},
		{"a routing rule that the agent's check has named", func(_ *Facts, n *Network) {
			n.Peers[0].Detour = &kernel.Detour{Node: "host-b", Dst: there, Outer: true, Link: "wg0", Table: 52}
			reason := advice.Reason(advice.Datapath, n.Peers[0].Detour.Err("", n.Pools))
			n.Checks.Routes = api.Check{Name: "routes", Status: api.Warning, Reason: reason}
			silence(n, false, "", "")
		}, "fault routes", "packets to 192.0.2.12 of host-b leave by wg0"},
		{"a route of another program by which the peer is reached", func(_ *Facts, n *Network) {
			n.Peers[0].Detour = &kernel.Detour{Node: "host-b", Dst: there, Outer: true, Link: "wg0", Table: 52}
		}, "", ""},
		{"a rule about this host itself explains the peer", func(_ *Facts, n *Network) {
			n.Obstacles = []foreign.Obstacle{{Network: "n", Own: true, Where: "iptables table filter chain ts-input", Rule: "-s 10.0.0.0/8 -j DROP", Effect: "drops packets", Advice: "use another pool"}}
			silence(n, true, api.DirectionPasses, api.DirectionLost)
		}, "fault rules", "use another pool"},
		{"a rule about this host itself, and a peer that is down", func(_ *Facts, n *Network) {
			n.Obstacles = []foreign.Obstacle{{Network: "n", Own: true, Where: "iptables table filter chain ts-input", Rule: "-s 10.0.0.0/8 -j DROP", Effect: "drops packets", Advice: "use another pool"}}
			silence(n, false, "", "")
		}, "fault rules, warning peers", "use another pool"},
		{"a rule here that drops the answers to echo requests", func(_ *Facts, n *Network) {
			b := blocked(true)
			b.Echoes, b.Rule, b.Removal = true, "-p icmp -j DROP", "iptables -t filter -D INPUT -p icmp -j DROP"
			n.Blockades = []foreign.Blockade{b}
			silence(n, false, "", "")
		}, "warning rules", `chain INPUT: "-p icmp -j DROP" drops the answers to echo requests of this host: its paths to other hosts cannot be tested with them ` +
			"accept ICMP there, before that rule: path MTU discovery needs it, too; or remove it: `iptables -t filter -D INPUT -p icmp -j DROP`"},
		{"a rule here that drops only answers over the underlay", func(_ *Facts, n *Network) {
			b := blocked(true)
			b.Echoes = true
			n.Blockades = []foreign.Blockade{b}
		}, "", ""},
		{"a rule here that drops answers to echo requests, and one about the port", func(_ *Facts, n *Network) {
			b := blocked(true)
			b.Echoes = true
			n.Blockades = []foreign.Blockade{b, blocked(true)}
			silence(n, false, "", "")
		}, "fault port", "what 192.0.2.12 sends to UDP port 8472"},
		{"some packets lost, by the continuous tests", func(_ *Facts, n *Network) {
			n.Peers[0].Path = &api.PeerPath{State: api.PathLossy, Reason: "4 of the last 20 packets were lost, most of them to host-b"}
		}, "warning peers", "the continuous tests of the path to host-b: 4 of the last 20 packets were lost, most of them to host-b"},
		{"the record has another key", func(_ *Facts, n *Network) {
			n.Device.Key, n.Lease.Record.Backend.Object = "mine=", json.RawMessage(`{"type":"wireguard","public_key":"other="}`)
		}, "fault record", "public key of leno-n: the record says other=, here it is mine="},
		{"the record contradicts the device", func(_ *Facts, n *Network) { n.Device.MAC, n.Lease.Record.MTU = "0a:00:00:00:00:02", 1400 }, "fault record", "VTEP MAC"},
		{"the record contradicts the underlay", func(_ *Facts, n *Network) {
			n.Underlay.Public = []netip.Addr{there}
			n.Underlay.Own = n.Underlay.Public
		}, "fault record", "public address"},
		{"the record names another backend", func(_ *Facts, n *Network) { n.Backend = "udp" }, "fault record", "backend: the record says vxlan"},
		{"no TUN explains the peers", func(_ *Facts, n *Network) {
			n.Device.TUN, n.Device.Exists, n.Checks.Device = tun, false, failing("device", tun.Error())
			silence(n, true, api.DirectionUnknown, api.DirectionUnknown)
		}, "fault module", "load the kernel module tun"},
		{"no VXLAN explains the peers", func(_ *Facts, n *Network) {
			n.Device.Exists, n.Checks.Device = false, failing("device", "create link: "+backend.ErrNoSuchKind.Error()+"; load the kernel module (`modprobe vxlan`) or build it, or use another backend for the network")
			silence(n, true, api.DirectionUnknown, api.DirectionUnknown)
		}, "fault module", "load the kernel module (`modprobe vxlan`) or build it"},
		{"a right of the host is missing", func(f *Facts, n *Network) {
			f.Capabilities, n.Checks.Device = []string{"CAP_NET_ADMIN"}, failing("device", "operation not permitted")
		}, "fault rights", "CAP_NET_ADMIN"},
		{"no packets may be sent", func(f *Facts, n *Network) {
			f.Capabilities, f.InactiveReason, n.Peers[0].Probe, n.Probed = []string{"CAP_NET_RAW"}, "no right", nil, 0
		}, "unknown rights", "CAP_NET_RAW"},
		{"the device is down", func(_ *Facts, n *Network) { n.Device.Up = false; silence(n, true, "", "") }, "fault device", "is down"},
		{"a rule here, seen in passing", func(_ *Facts, n *Network) {
			n.Blockades, n.Peers[0].Probe, n.Probed = []foreign.Blockade{blocked(true)}, nil, 0
		}, "fault port", "what 192.0.2.12 sends"},
		{"a rule here, and the command that removes it", func(_ *Facts, n *Network) {
			n.Blockades = []foreign.Blockade{blocked(true)}
			n.Blockades[0].Removal = "iptables -t filter -D INPUT -p udp -j DROP"
			silence(n, true, api.DirectionPasses, api.DirectionLost)
		}, "fault port", "there, before that rule, or remove it: `iptables -t filter -D INPUT -p udp -j DROP`"},
		{"a rule here that blocks no peer", func(_ *Facts, n *Network) { n.Blockades = []foreign.Blockade{blocked(true)} }, "", ""},
		{"a rule here, where pings are closed too", func(_ *Facts, n *Network) {
			n.Blockades = []foreign.Blockade{blocked(false)}
			silence(n, false, "", "")
		}, "fault port", "what this host sends"},
		{"a rule here, and a peer behind a NAT that forwards another port", func(_ *Facts, n *Network) {
			n.Blockades, n.Peers[0].Port = []foreign.Blockade{blocked(false)}, 30001
			n.Blockades[0].Path.PeerPort = 30001
			silence(n, false, "", "")
		}, "fault port", "what this host sends to UDP port 30001 of 192.0.2.12"},
		{"a rule here, for another peer behind the same NAT", func(_ *Facts, n *Network) {
			n.Blockades, n.Peers[0].Port = []foreign.Blockade{blocked(false)}, 30001
			silence(n, false, "", "")
		}, "warning peers", "answers neither at 192.0.2.12"},
		{"a rule here of a program that has a command", func(_ *Facts, n *Network) {
			b := blocked(true)
			b.Removal = "iptables -D ufw"
			b.Command = "ufw allow proto udp from 192.0.2.12 to any port 8472"
			n.Blockades = []foreign.Blockade{b}
			silence(n, false, "", "")
		}, "fault port", "`ufw allow proto udp from 192.0.2.12 to any port 8472`"},
		{"a rule here that lets only answers pass", func(_ *Facts, n *Network) {
			b := blocked(true)
			b.ExceptAnswers = true
			n.Blockades = []foreign.Blockade{b}
		}, "warning port", "unless it answers what this host has sent"},
		{"lost on the way to the peer", func(_ *Facts, n *Network) { silence(n, true, api.DirectionLost, api.DirectionPasses) }, "fault port", "from 192.0.2.11 to 192.0.2.12"},
		{"lost on the way from the peer", func(_ *Facts, n *Network) { silence(n, true, api.DirectionPasses, api.DirectionLost) }, "fault port", "from 192.0.2.12 to 192.0.2.11"},
		{"lost both ways", func(_ *Facts, n *Network) { silence(n, true, api.DirectionUnknown, api.DirectionUnknown) }, "fault port", "in either direction"},
		{"behind a NAT that does not pass the port on", func(_ *Facts, n *Network) {
			n.Underlay.Public = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
			n.Lease.Record.PublicIPs = n.Underlay.Public
			silence(n, true, api.DirectionPasses, api.DirectionLost)
		}, "fault public_ip", "forward UDP port 8472"},
		{"behind a NAT that does", func(_ *Facts, n *Network) {
			n.Underlay.Public = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
			n.Lease.Record.PublicIPs = n.Underlay.Public
		}, "", ""},
		{"a peer that does not answer", func(_ *Facts, n *Network) { silence(n, false, "", "") }, "warning peers", "publishes a wrong address"},
		{"a peer that has lapsed", func(_ *Facts, n *Network) { silence(n, false, "", ""); n.Peers[0].Held = false }, "warning peers", "lapsed"},
		{"the reverse path filter explains the peer", func(_ *Facts, n *Network) {
			silence(n, true, api.DirectionPasses, api.DirectionLost)
			n.Peers[0].Refusals = []Refusal{{Source: there, Dest: here, Link: "eth0", Mode: "2"}}
		}, "fault rp_filter", "no route leads back"},
		{"the reverse path filter of a VLAN", func(_ *Facts, n *Network) {
			n.Peers[0].Refusals = []Refusal{{Source: there, Dest: here, Link: "eth0.100", Mode: "1", ReturnLink: "eth1"}}
			silence(n, false, "", "")
		}, "fault rp_filter", "`sysctl -w net.ipv4.conf.eth0/100.rp_filter=2 net.ipv4.conf.all.rp_filter=2`"},
		{"a refusal that nothing meets", func(_ *Facts, n *Network) {
			n.Peers[0].Refusals = []Refusal{{Source: there, Dest: here, Link: "eth0", Mode: "1", ReturnLink: "leno-n", IfAsymmetric: true}}
		}, "", ""},
		{"the reverse path filter drops what comes by another link", func(_ *Facts, n *Network) {
			silence(n, false, "", "")
			n.Filtered = 6
			n.Peers[0].Refusals = []Refusal{{Source: there, Dest: here, Link: "eth1 or eth2", Mode: "1", ReturnLink: "eth0", OtherLinks: true}}
		}, "fault rp_filter", "packets from 192.0.2.12 that arrive on eth1 or eth2 are dropped: rp_filter is 1 there, and the route back is over eth0"},
		{"a peer is down, and nothing comes by another link", func(_ *Facts, n *Network) {
			silence(n, false, "", "")
			n.Peers[0].Refusals = []Refusal{{Source: there, Dest: here, Link: "eth1", Mode: "1", ReturnLink: "eth0", OtherLinks: true}}
		}, "warning peers", "publishes a wrong address"},
		{"full packets lost", func(_ *Facts, n *Network) {
			n.Peers[0].Probe.Ways[0].Full.Answered, n.Peers[0].Probe.Ways[0].Largest = 0, 1350
		}, "fault path_mtu", "1350 bytes pass"},
		{"some packets lost", func(_ *Facts, n *Network) { n.Peers[0].Probe.Ways[0].Full.Answered = 2 }, "warning peers",
			"1 of 3 packets (1450 bytes) to host-b lost in the overlay"},
		{"no packets were sent", func(f *Facts, n *Network) { f.Active, n.Peers[0].Probe, n.Probed = false, nil, 0 }, "unknown peers", "the paths to the other hosts (1) are not tested"},
		{"no packets were sent, and there are no peers", func(f *Facts, n *Network) { f.Active, n.Peers, n.Probed = false, nil, 0 }, "", ""},
		{"more than pings lost", func(_ *Facts, n *Network) { n.Peers[0].Datagrams = No }, "fault checksum", "checksum_offload"},
		{"a route in the pool", func(_ *Facts, n *Network) {
			n.Routes = []Route{{Dst: netip.MustParsePrefix("10.5.2.0/25"), Link: "eth1"}}
		}, "fault overlap", "where host-b has its subnet"},
		{"a route that refuses packets to a peer", func(_ *Facts, n *Network) {
			n.Routes = []Route{{Dst: netip.MustParsePrefix("10.5.2.0/25"), Refuses: "blackhole"}}
			n.Peers[0].Detour = &kernel.Detour{Node: "host-b", Dst: netip.MustParseAddr("10.5.2.0"), Table: 254, Route: &kernel.RejectingRoute{Type: "blackhole", Dst: netip.MustParsePrefix("10.5.2.0/25")}}
			silence(n, true, "", "")
			n.Peers[0].Probe.Ways[0].Errors = []api.ProbeError{{Reason: "invalid argument", Count: 3}}
		}, "fault overlap", "the route blackhole 10.5.2.0/25, which refuses packets, lies in the pool 10.5.0.0/16, where host-b has its subnet remove the route if nothing needs it (`ip route del blackhole 10.5.2.0/25`)"},
		{"routes that refuse what has no longer route", func(_ *Facts, n *Network) {
			n.Routes = []Route{{Dst: netip.MustParsePrefix("10.5.0.0/17"), Refuses: "unreachable"}, {Dst: netip.MustParsePrefix("10.5.77.0/24"), Refuses: "blackhole"}}
		}, "", ""},
		{"routes that belong there", func(_ *Facts, n *Network) {
			n.Routes = []Route{{Dst: netip.MustParsePrefix("10.5.1.0/24"), Link: "docker0", Serves: true, Connected: true}, {Dst: netip.MustParsePrefix("10.0.0.0/8"), Link: "eth0"}, {Dst: n.Pools[0], Link: "eth0"}}
		}, "", ""},
		{"flannel's routes on a host that moves to leno", func(_ *Facts, n *Network) {
			n.Routes = []Route{{Dst: netip.MustParsePrefix("10.5.2.0/24"), Link: "flannel.1", Flannel: true}, {Dst: netip.MustParsePrefix("10.5.3.0/24"), Link: "flannel.1", Flannel: true}}
		}, "warning overlap", "routes in the pool lead over flannel.1 as those of flannel do this is normal while flanneld runs here"},
		{"routes of flannel's host-gw", func(_ *Facts, n *Network) {
			n.Routes = []Route{{Dst: netip.MustParsePrefix("10.5.3.0/24"), Link: "eth0", Gateway: there}}
		}, "warning overlap", "over eth0"},
		{"a route over a gateway to something smaller", func(_ *Facts, n *Network) {
			n.Routes = []Route{{Dst: netip.MustParsePrefix("10.5.3.0/28"), Link: "eth0", Gateway: there}}
		}, "fault overlap", "10.5.3.0/28 over eth0 lies in the pool"},
		{"a pool of public addresses", func(_ *Facts, n *Network) {
			n.Pools = append(n.Pools, netip.MustParsePrefix("2000::/3"))
		}, "warning overlap", "pool 2000::/3 contains public addresses, which this host cannot reach if they are not your own"},
		{"a pool of an IPv6 prefix that may be the network's own", func(_ *Facts, n *Network) {
			n.Pools = append(n.Pools, netip.MustParsePrefix("2a00:1234::/32"))
		}, "", ""},
		{"a flannel host that the overlay does not reach", func(_ *Facts, n *Network) {
			silence(n, true, "", "")
			n.Peers[0].Flannel, n.Peers[0].Node = true, "flannel-192.0.2.12"
		}, "fault peers", "restart it if the MAC address of its device (`ip link show flannel.1`) is not that in its record (`leno lease show n 10.5.2.0/24`)"},
		{"a flannel host that does not answer", func(_ *Facts, n *Network) {
			silence(n, false, "", "")
			n.Peers[0].Flannel, n.Peers[0].Node = true, "flannel-192.0.2.12"
		}, "warning peers", "whose record stays for a day after flanneld has ended"},
		{"the record has another address, which explains the peers", func(_ *Facts, n *Network) {
			n.Device.MAC = "0a:00:00:00:00:02"
			silence(n, true, api.DirectionPasses, api.DirectionLost)
		}, "fault record", "VTEP MAC"},
		{"a peer that there was no time to ask", func(_ *Facts, n *Network) {
			n.Peers[0].Probe.Ways = []api.ProbedWay{{Path: api.PathOverlay, NotProbed: "the probe ended before this was done"}, {Path: api.PathUnderlay, NotProbed: "the probe ended before this was done"}}
		}, "unknown peers", "before this was done"},
		{"a peer half of which there was no time to ask", func(_ *Facts, n *Network) {
			silence(n, true, "", "")
			n.Peers[0].Probe.Ways[1] = api.ProbedWay{Path: api.PathUnderlay, NotProbed: "the probe ended before this was done"}
		}, "unknown peers", "before this was done"},
		{"packets that rules of this host keep", func(_ *Facts, n *Network) {
			silence(n, true, "", "")
			n.Peers[0].Probe.Ways[0].Errors = []api.ProbeError{{Reason: "a firewall of this host drops it", Count: 3}}
		}, "unknown peers", "a firewall of this host drops it"},
		{"a port that is refused, of which no packet of ours shows anything", func(_ *Facts, n *Network) {
			silence(n, true, "", "")
			n.Peers[0].Probe.Ways[0].Errors = []api.ProbeError{{Reason: "a firewall of this host drops it", Count: 3}}
			n.Peers[0].Probe.Ways[1].Errors = []api.ProbeError{{Reason: "port unreachable", From: there, About: "udp port 8472", Count: 1}}
		}, "fault port", "port unreachable"},
		{"a peer whose rules take no echo requests", func(_ *Facts, n *Network) {
			silence(n, false, api.DirectionPasses, api.DirectionPasses)
		}, "", ""},
		{"datagrams that could not be sent", func(_ *Facts, n *Network) { n.Peers[0].Datagrams = Unknown }, "", ""},
		{"a peer that is left out, and to which no route leads", func(_ *Facts, n *Network) {
			n.Peers[0].Skipped, n.Peers[0].Probe, n.Probed = "another backend", nil, 0
			n.Peers[0].Refusals = []Refusal{{Source: there, Dest: here, Link: "leno-n", Mode: "2"}}
			n.Blockades = []foreign.Blockade{blocked(true)}
		}, "", ""},
		{"a network whose routes are the user's own", func(_ *Facts, n *Network) {
			n.Backend, n.Device, n.Link, n.Port, n.Lease.Record.Backend.Type = "alloc", Device{}, "", 0, "alloc"
			n.Routes = []Route{{Dst: netip.MustParsePrefix("10.5.2.0/24"), Link: "eth0"}, {Dst: netip.MustParsePrefix("10.5.0.0/17"), Link: "wg0", Connected: true}}
		}, "", ""},
		{"what only health knows", func(_ *Facts, n *Network) {
			n.Checks.Others = []api.Check{failing("subnet_file", "read-only file system")}
		}, "fault subnet_file", "read-only"},
		{"a file that waits for the device", func(_ *Facts, n *Network) {
			n.Device.Up = false
			n.Checks.Others = []api.Check{failing("subnet_file", health.Starting)}
		}, "fault device", "is down"},
		{"a file that waits for the first pass", func(_ *Facts, n *Network) {
			n.Checks.Others = []api.Check{failing("subnet_file", health.Starting)}
		}, "fault subnet_file", "starting"},
		{"forwarding that is off", func(_ *Facts, n *Network) { n.Forwarding = []forwarding.State{{Off: []string{"net.ipv4.ip_forward"}}} }, "fault forwarding", "sysctl -w net.ipv4.ip_forward=1"},
		{"forwarding that would cost routes", func(_ *Facts, n *Network) {
			n.Forwarding = []forwarding.State{{}, {Off: []string{"net.ipv6.conf.all.forwarding"}, Advertised: []string{"eth0"}}}
		}, "fault forwarding", "set net.ipv6.conf.eth0.accept_ra to 2, and only then net.ipv6.conf.all.forwarding to 1"},
		{"forwarding that cost routes", func(_ *Facts, n *Network) { n.Forwarding = []forwarding.State{{Advertised: []string{"eth0"}}} },
			"warning forwarding", "set net.ipv6.conf.eth0.accept_ra to 2"},
		{"a rule that drops some packets", func(_ *Facts, n *Network) {
			n.Obstacles = []foreign.Obstacle{{Network: "n", Partial: true, Where: "iptables table filter chain FORWARD", Rule: "-p tcp --dport 80 -j DROP", Effect: "drops some packets", Advice: "it may be intended"}}
		}, "warning rules", `"-p tcp --dport 80 -j DROP": drops some packets it may be intended`},
		{"many rules that drop some packets, and one that drops all", func(_ *Facts, n *Network) {
			for i := range 9 {
				n.Obstacles = append(n.Obstacles, foreign.Obstacle{Network: "n", Partial: true, Where: "w", Rule: fmt.Sprint(i), More: i / 8 * 4, Effect: "drops some packets", Advice: "it may be intended"})
			}
			n.Obstacles = append(n.Obstacles, foreign.Obstacle{Network: "n", Where: "w", Rule: "policy DROP", Effect: "drops", Advice: "open it"})
		}, "fault rules, warning rules, warning rules, warning rules, warning rules, warning rules, warning rules", "policy DROP"},
		{"rules that cannot be read", func(_ *Facts, n *Network) { n.RulesErr = errors.New("no right") }, "unknown rules", "no right"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := healthyHost()
			tt.change(&f, &f.Networks[0])
			list := slices.DeleteFunc(Judge(f), func(f api.Finding) bool { return f.Status == api.FindingOK })
			var got []string
			for _, f := range list {
				got = append(got, f.Status+" "+f.Check)
				if f.Tried == "" || f.Saw == "" || f.Status == api.FindingFault && f.Do == "" && !slices.Contains([]string{"subnet_file"}, f.Check) {
					t.Errorf("a part is missing: %+v", f)
				}
			}
			if strings.Join(got, ", ") != tt.want {
				t.Errorf("got %q, want %q:\n%+v", got, tt.want, list)
			} else if len(list) > 0 && !strings.Contains(fmt.Sprint(list[0]), tt.words) {
				t.Errorf("missing %q: %+v", tt.words, list[0])
			}
		})
	}
}

// healthyHostWithPeers returns a host on which nothing is wrong, with peers that answer.
func healthyHostWithPeers(peers int) Facts {
	f := healthyHost()
	n := &f.Networks[0]
	n.Peers, n.Probed = nil, peers
	for i := range peers {
		name := fmt.Sprintf("host-%c", 'b'+i)
		n.Peers = append(n.Peers, Peer{Node: name, Held: true, Public: netip.AddrFrom4([4]byte{192, 0, 2, byte(12 + i)}),
			Subnets: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(2 + i), 0}), 24)}, Datagrams: Yes,
			Probe: &api.PeerProbe{Node: name, Held: true, Reached: true, Ways: []api.ProbedWay{way(api.PathOverlay, true), way(api.PathUnderlay, true)}}})
	}
	return f
}

// TestFaultsOfSeveralPeers checks that a fault that all peers show is reported once, for this host, and one that some
// show is reported once, for the path to them. A peer that does not answer does not count.
func TestFaultsOfSeveralPeers(t *testing.T) {
	narrow := func(overlay, underlay int, said ...api.ProbeError) func(*Peer) {
		return func(p *Peer) {
			over, under := &p.Probe.Ways[0], &p.Probe.Ways[1]
			over.MTU, over.Full, over.Largest = 1450, api.ProbedSize{Bytes: 1450, Sent: 3}, overlay
			under.MTU, under.Full, under.Largest, under.Errors = 1500, api.ProbedSize{Bytes: 1500, Sent: 3}, underlay, said
		}
	}
	closed := func(there, back string) func(*Peer) {
		return func(p *Peer) {
			p.Probe.Ways[0], p.Probe.Reached = way(api.PathOverlay, false), false
			p.Probe.ToPeer, p.Probe.FromPeer = &api.ProbedDirection{State: there}, &api.ProbedDirection{State: back}
		}
	}
	silent := func(p *Peer) {
		p.Probe.Ways, p.Probe.Reached = []api.ProbedWay{way(api.PathOverlay, false), way(api.PathUnderlay, false)}, false
	}
	refusal := func(p *Peer) {
		p.Refusals = []Refusal{{Source: p.Public, Dest: here, Link: "eth0", Mode: "1", ReturnLink: "eth1"}}
		silent(p)
	}
	for _, tt := range []struct {
		name  string
		peers int
		with  map[int]func(*Peer)
		want  []string // "status check peer: words", of all findings that are not ok
		lacks string   // in the texts
	}{
		{"one link is narrow, seen from there", 3, map[int]func(*Peer){0: narrow(1354, 1404), 1: narrow(1354, 1404), 2: narrow(1350, 1404)}, []string{
			"fault path_mtu : packets of 1350 bytes pass through the overlay, those of 1450, its MTU, do not; of 1500 bytes that eth0 can send, 1400 reach host-b, host-c and host-d over the underlay; " +
				"all 3 hosts that answer show it: the fault is on this host's own link, eth0 | set the MTU of what eth0 is connected to (its switch port, VLAN or virtual network) to 1500; " +
				"else lower that of every host, here with `ip link set dev eth0 mtu 1400`"}, "1404"},
		{"one link is narrow, seen from another host", 3, map[int]func(*Peer){1: narrow(1354, 1400)}, []string{
			"fault path_mtu host-c: 1400 reach host-c over the underlay; the other hosts that answer (2) do not show it: the fault is on the side of host-c | set the MTU of what host-c is connected to"}, "own link"},
		{"the way to some is narrow", 4, map[int]func(*Peer){1: narrow(1354, 1404), 2: narrow(1350, 1400)}, []string{
			"fault path_mtu : 1400 reach host-c and host-d over the underlay; the other hosts that answer (2) do not show it: the fault is between this host and them | set the MTU of what lies between the hosts"}, "own link"},
		{"one peer, which tells no sides apart", 1, map[int]func(*Peer){0: narrow(1350, 1400)}, []string{"fault path_mtu host-b: 1400 reach host-b over the underlay | set the MTU of what lies between"}, "the fault is on"},
		{"a router says so", 1, map[int]func(*Peer){0: narrow(1354, 1404, api.ProbeError{Reason: "fragmentation needed", From: there, MTU: 1392})}, []string{
			"fault path_mtu host-b: packets of 1342 bytes pass through the overlay | 192.0.2.12 reports it (fragmentation needed, 1392) | mtu 1392"}, ""},
		{"this host's port is closed", 2, map[int]func(*Peer){0: closed(api.DirectionPasses, api.DirectionLost), 1: closed(api.DirectionPasses, api.DirectionLost)}, []string{
			"fault port : for each of host-b and host-c: its host answers | packets from it are lost; all 2 hosts that answer show it: the fault is on this host's own side | accept UDP port 8472 from all hosts to 192.0.2.11"}, ""},
		{"this host's port is closed to one", 2, map[int]func(*Peer){0: closed(api.DirectionLost, api.DirectionPasses)}, []string{
			"fault port host-b: packets to its UDP port 8472 are lost; the other hosts that answer (1) do not show it: the fault is on the side of host-b | accept UDP port 8472 from 192.0.2.11 to 192.0.2.12"}, ""},
		{"two faults", 3, map[int]func(*Peer){0: closed(api.DirectionLost, api.DirectionPasses), 1: narrow(1350, 1400)}, []string{
			"fault port host-b: other hosts that answer (2) do not show it: the fault is on the side of host-b", "fault path_mtu host-c: other hosts that answer (1) do not show it: the fault is on the side of host-c"}, "own link"},
		{"no peer answers", 2, map[int]func(*Peer){0: silent, 1: silent}, []string{
			"fault peers : none of the 2 hosts that hold a lease answers | host-b and host-c; the fault is on this host's own link, eth0 | `ip route get 192.0.2.12`"}, ""},
		{"one does not answer", 2, map[int]func(*Peer){1: silent}, []string{"warning peers host-c: answers neither at 192.0.2.13"}, "1 of 2"},
		{"the reverse path filter keeps all out", 2, map[int]func(*Peer){0: refusal, 1: refusal}, []string{
			"fault rp_filter : packets from 192.0.2.12 and 192.0.2.13 that arrive on eth0 are dropped | the route back is over eth1"}, ""},
		{"pings alone", 2, map[int]func(*Peer){0: func(p *Peer) { p.Datagrams = No }, 1: func(p *Peer) { p.Datagrams = No }}, []string{
			"fault checksum : pings reach host-b and host-c, UDP and TCP do not | this host's own link"}, ""},
		{"packets lost on all ways", 2, map[int]func(*Peer){0: func(p *Peer) { p.Probe.Ways[0].Small.Answered = 2 }, 1: func(p *Peer) { p.Probe.Ways[1].Full.Answered = 1 }}, []string{
			"warning peers : 1 of 3 packets (64 bytes) to host-b lost in the overlay; 2 of 3 packets (1450 bytes) to host-c lost in the underlay; all 2 hosts that answer show it |  `leno peers n -probe -count=50` | `ip -s link show dev eth0`"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := healthyHostWithPeers(tt.peers)
			for i, change := range tt.with {
				change(&f.Networks[0].Peers[i])
			}
			list := Judge(f)
			said := fmt.Sprint(list)
			if tt.lacks != "" && strings.Contains(said, tt.lacks) {
				t.Errorf("it says %q: %s", tt.lacks, said)
			}
			if strings.Contains(said, "…") {
				t.Errorf("a command cannot be pasted: %s", said)
			}
			answering := slices.ContainsFunc(list, func(f api.Finding) bool { return f.Check == CheckPeers && f.Status == api.FindingOK })
			wrong := slices.DeleteFunc(slices.Clone(list), func(f api.Finding) bool { return f.Status == api.FindingOK })
			if len(wrong) != len(tt.want) {
				t.Fatalf("%d findings, want %d:\n%+v", len(wrong), len(tt.want), wrong)
			}
			for i, want := range tt.want {
				head, words, _ := strings.Cut(want, ": ")
				if got := fmt.Sprintf("%s %s %s", wrong[i].Status, wrong[i].Check, wrong[i].Peer); got != head {
					t.Errorf("got %q, want %q", got, head)
				}
				for word := range strings.SplitSeq(words, " | ") {
					if text := wrong[i].Saw + " " + wrong[i].Do; !strings.Contains(text, word) {
						t.Errorf("missing %q: %s", word, text)
					}
				}
			}
			if unreached := slices.ContainsFunc(f.Networks[0].Peers, func(p Peer) bool { return !p.Probe.Reached }); answering == unreached {
				t.Errorf("that all answer is said: %t, though it is %t", answering, !unreached)
			}
			judged := JudgePaths(f.Networks[0], f.Connections)
			if fmt.Sprint(judged) != fmt.Sprint(wrong) {
				t.Errorf("a probe alone is judged otherwise:\n%+v\n%+v", judged, wrong)
			}
		})
	}
}

// TestOfflineHasNoPeerFindings checks a command without an agent: it does not know the other hosts.
func TestOfflineHasNoPeerFindings(t *testing.T) {
	f := healthyHost()
	f.Offline, f.Active = &Offline{Address: "127.0.0.1:5366", Err: errors.New("refused"), Files: []string{"a.hcl"}}, false
	f.Networks[0].Peers, f.Networks[0].Probed = nil, 0
	for _, f := range Judge(f) {
		if f.Check == CheckPeers {
			t.Errorf("%+v", f)
		}
	}
}

// TestFlannel checks that no finding about a host that runs flannel sends anyone to `leno doctor` or an agent there,
// and that flannel's chains are named.
func TestFlannel(t *testing.T) {
	for _, underlay := range []bool{true, false} {
		f := healthyHostWithPeers(2)
		f.FlannelChains = []string{"the chain FLANNEL-FWD", "the chain FLANNEL-POSTRTG"}
		for i := range f.Networks[0].Peers {
			p := &f.Networks[0].Peers[i]
			p.Flannel, p.Probe.Reached = i == 0, i > 0
			if p.Flannel {
				p.Probe.Ways = []api.ProbedWay{way(api.PathOverlay, false), way(api.PathUnderlay, underlay)}
			}
		}
		found, named := false, false
		for _, finding := range Judge(f) {
			named = named || finding.Status == api.FindingOK && strings.Contains(finding.Saw, "the chain FLANNEL-FWD and the chain FLANNEL-POSTRTG")
			if finding.Peer == "" {
				continue
			}
			found = true
			if strings.Contains(finding.Do, "leno doctor") || strings.Contains(finding.Do, "agent") || !strings.Contains(finding.Do, "flanneld") {
				t.Errorf("%+v", finding)
			}
		}
		if !found || !named {
			t.Errorf("a finding about the peer: %t, flannel's chains named: %t", found, named)
		}
	}
}
