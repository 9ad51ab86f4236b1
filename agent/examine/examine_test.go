package examine

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// A store has one network, "n", and the records of its leases.
type store struct {
	definition registry.Network
	leases     []registry.Lease
	err        error // of everything
	wanted     registry.RequiredRights
}

func (s *store) Network(_ context.Context, name string) (registry.Network, error) {
	if s.err == nil && name != s.definition.Name {
		return registry.Network{}, registry.ErrNetworkNotFound
	}
	return s.definition, s.err
}

func (s *store) WatchLease(
	_ context.Context, _ registry.Network, subnet netip.Prefix, _ uint64,
) (registry.Lease, uint64, error) {
	for _, l := range s.leases {
		if l.Subnet() == subnet {
			return l, 1, s.err
		}
	}
	return registry.Lease{}, 1, registry.ErrLeaseNotFound
}

func (s *store) Abilities() registry.Abilities {
	return registry.Abilities{Probe: func(context.Context) error { return s.err }, Rights: s}
}

func (s *store) HasToken() bool { return true }

func (s *store) Rights(_ context.Context, w registry.RequiredRights) ([]registry.Right, error) {
	s.wanted = w
	return []registry.Right{{Rule: "a rule", For: "to take part", Granted: false}}, nil
}

func lease(node, subnet, at string) registry.Lease {
	return registry.Lease{
		Network:   "n",
		Node:      node,
		NodeID:    "id-" + node,
		Session:   "s-" + node,
		Subnets:   []netip.Prefix{netip.MustParsePrefix(subnet)},
		PublicIPs: []netip.Addr{netip.MustParseAddr(at)},
		Backend:   registry.Backend{Type: "host-gw"},
		MTU:       1450,
	}
}

func peer(l registry.Lease) api.Peer {
	return api.Peer{Node: l.Node, Held: l.Held(), Subnets: l.Subnets, PublicIPs: l.PublicIPs}
}

// reached returns the answers of peers that were all reached.
func reached(_ context.Context, peers []api.Peer, _ api.ProbeRequest) (out api.Probe, err error) {
	for _, p := range peers {
		way := api.ProbedWay{Path: api.PathOverlay, To: p.Subnets[0].Addr(), Answer: "echo reply"}
		way.Small = api.ProbedSize{Bytes: 64, Sent: 3, Answered: 3}
		out.Peers = append(out.Peers, api.PeerProbe{Node: p.Node, Reached: true, Ways: []api.ProbedWay{way}})
	}
	return out, nil
}

// newNetwork returns the part of host "a" in a network with the given peers.
func newNetwork(t *testing.T, peers ...api.Peer) Network {
	t.Helper()
	plan, err := registry.Plan{{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 24}}.Normalize()
	must(t, err)
	kind, err := registry.NewBackend("host-gw", []byte(`{"port":8472}`))
	must(t, err)
	own := lease("a", "10.5.1.0/24", "192.0.2.1")
	return Network{
		Local:      config.Network{Name: "n"},
		Definition: registry.Network{Name: "n", Plan: plan, Backend: kind},
		Shown: api.Local{MTU: 1450, Link: "leno-none", Underlay: api.Underlay{
			Interface: "eth0",
			MTU:       1500,
			Addresses: own.PublicIPs,
		}},
		TTL:   config.Defaults().Lease.TTL,
		Held:  &own,
		Lease: own,
		Peers: peers,
		Probe: reached,
	}
}

// backends returns the only backend of the tests. It has a port, which a real one of this type has not.
func backends() map[string]backend.Type {
	return map[string]backend.Type{"host-gw": {Name: "host-gw", Port: func(options json.RawMessage) backend.Port {
		var o struct{ Port int }
		_ = json.Unmarshal(options, &o) // no options: no port
		return backend.Port{Number: o.Port, Socket: "udp"}
	}}}
}

// newExaminer returns an examiner of a host without rules.
func newExaminer(s *store) *Examiner {
	return &Examiner{
		Registry:     s,
		RegistryName: "a fake",
		Backends:     backends(),
		EnsureForwarding: func(netip.Prefix, []string, bool) (forwarding.State, error) {
			return forwarding.State{}, nil
		},
		ReadRules: func(context.Context, []foreign.OverlayPath, []foreign.UnderlayPath) (
			[]foreign.Obstacle, []foreign.Blockade, error,
		) {
			return nil, nil, nil
		},
		Datagrams: func(context.Context, netip.Addr, netip.Prefix) doctor.Answer { return doctor.Unknown },
	}
}

// found returns the findings that are not ok, as "status check network".
func found(d api.Diagnosis) (out []string) {
	for _, f := range d.Findings {
		if f.Status != api.FindingOK {
			out = append(out, strings.TrimSpace(f.Status+" "+f.Check+" "+f.Network))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TestExamine: the rules are read once for all networks, and what they block is a fault of its network.
func TestExamine(t *testing.T) {
	b := lease("b", "10.5.2.0/24", "192.0.2.2")
	n := newNetwork(t, peer(b))
	other := newNetwork(t, peer(lease("b", "10.6.2.0/24", "192.0.2.2")))
	other.Local.Name, other.Definition.Name = "m", "m"
	var err error
	pool := registry.Pool{Prefix: netip.MustParsePrefix("10.6.0.0/16"), SubnetLen: 24}
	other.Definition.Plan, err = registry.Plan{pool}.Normalize()
	must(t, err)
	other.Lease.Subnets = []netip.Prefix{netip.MustParsePrefix("10.6.1.0/24")}
	*other.Held = other.Lease
	unknown := Network{Local: config.Network{Name: "unknown"}}
	s := &store{definition: n.Definition, leases: []registry.Lease{n.Lease, other.Lease}}
	h := Host{Node: "a", Networks: []Network{n, other, unknown}}
	h.Config.NodeName = "a"
	for _, name := range []string{"n", "m"} {
		h.Config.Networks = append(h.Config.Networks, config.Network{Name: name, Pools: make([]config.Pool, 1)})
	}
	e := newExaminer(s)
	var reads atomic.Int32
	var overlay []string
	var underlay []foreign.UnderlayPath
	e.ReadRules = func(_ context.Context, crossings []foreign.OverlayPath, lanes []foreign.UnderlayPath) (
		[]foreign.Obstacle, []foreign.Blockade, error,
	) {
		reads.Add(1)
		for _, c := range crossings {
			overlay = append(overlay, c.Network.Name)
		}
		underlay = lanes
		o := foreign.Obstacle{Network: "m", Where: "chain FORWARD", Rule: "-j DROP", Effect: "drops packets"}
		return []foreign.Obstacle{o}, nil, nil
	}
	out := e.Examine(t.Context(), h, api.DoctorOptions{})
	if !out.Agent || !out.Active || out.Node != "a" {
		t.Errorf("%+v", out)
	}
	got := found(out)
	if !slices.Contains(got, "fault rules m") || slices.Contains(got, "fault rules n") {
		t.Errorf("findings %q", got)
	}
	if !slices.Contains(got, "fault acl") {
		t.Errorf("a right that is missing is not told: %q", got)
	}
	if reads.Load() != 1 || !slices.Equal(overlay, []string{"n", "m"}) {
		t.Errorf("rules were read %d times, for %q", reads.Load(), overlay)
	}
	want := foreign.UnderlayPath{
		Network: "n", Link: "eth0",
		Own: netip.MustParseAddr("192.0.2.1"), Peer: netip.MustParseAddr("192.0.2.2"), Port: 8472, PeerPort: 8472,
	}
	if len(underlay) != 2 || underlay[0] != want {
		t.Errorf("paths between hosts: %+v, want %+v", underlay, want)
	}
	n.Peers[0].Endpoint = netip.MustParseAddrPort("203.0.113.1:30001") // behind a NAT
	kind := e.Backends["host-gw"]
	exact := kind
	exact.SamePort = true
	e.Backends["host-gw"] = exact
	want.Peer, want.SamePort = n.Peers[0].Endpoint.Addr(), true
	for _, tt := range []struct {
		switching *api.Switch // between two backends, of which either may have that endpoint
		port      int
	}{{nil, 30001}, {&api.Switch{}, 8472}} {
		n.Shown.Switch, want.PeerPort = tt.switching, tt.port
		facts, p := e.networkFacts(n)
		if len(p.underlay) != 1 || p.underlay[0] != want || facts.Peers[0].Port != want.PeerPort {
			t.Errorf("path to a host behind a NAT: %+v, want %+v", p.underlay, want)
		}
	}
	n.Peers[0].Endpoint, n.Shown.Switch, e.Backends["host-gw"] = netip.AddrPort{}, nil, kind
	rights := registry.RequiredRights{Node: "a", Named: true, Networks: []string{"n", "m", "unknown"}, Defines: []string{"m"}}
	if diff := cmp.Diff(rights, s.wanted); diff != "" {
		t.Errorf("rights (-want +got):\n%s", diff)
	}

	out = e.Examine(t.Context(), h, api.DoctorOptions{Network: "n"})
	for _, f := range out.Findings {
		if f.Network != "" && f.Network != "n" {
			t.Errorf("of another network: %+v", f)
		}
	}
}

// TestPassive: without permission, no packets are sent.
func TestPassive(t *testing.T) {
	n := newNetwork(t, peer(lease("b", "10.5.2.0/24", "192.0.2.2")))
	n.Probe = func(context.Context, []api.Peer, api.ProbeRequest) (api.Probe, error) {
		t.Error("peers were probed")
		return api.Probe{}, nil
	}
	e := newExaminer(&store{definition: n.Definition, leases: []registry.Lease{n.Lease}})
	if out := e.Examine(t.Context(), Host{Networks: []Network{n}}, api.DoctorOptions{Passive: true}); out.Active {
		t.Error("a passive examination says that it was active")
	}
}

// TestBusy: a probe that cannot run now leaves the paths unknown, and the others are examined.
func TestBusy(t *testing.T) {
	n := newNetwork(t, peer(lease("b", "10.5.2.0/24", "192.0.2.2")))
	e := newExaminer(&store{definition: n.Definition, leases: []registry.Lease{n.Lease}})
	for _, err := range []error{
		&api.Error{Code: http.StatusConflict, Message: "a probe is running"},
		errors.New("a probe is running"),
	} {
		n.Probe = func(context.Context, []api.Peer, api.ProbeRequest) (api.Probe, error) { return api.Probe{}, err }
		facts, _ := e.networkFacts(n)
		if got := e.probePeers(t.Context(), n, &facts); got != "a probe is running" {
			t.Errorf("inactive for %q", got)
		}
		if out := e.Examine(t.Context(), Host{Networks: []Network{n}}, api.DoctorOptions{}); out.Active {
			t.Error("the examination says that packets were sent")
		}
	}
}

// TestRecords: a lease that the store gave to another host is a fault.
func TestRecords(t *testing.T) {
	n := newNetwork(t)
	s := &store{definition: n.Definition, leases: []registry.Lease{lease("thief", "10.5.1.0/24", "192.0.2.9")}}
	e := newExaminer(s)
	facts, _ := e.networkFacts(n)
	readRecord(t.Context(), s, n.Definition, &facts)
	if facts.Lease.Record == nil || facts.Lease.Record.Node != "thief" || facts.Lease.RecordErr != nil {
		t.Errorf("%+v", facts.Lease)
	}
	n.Held = nil
	facts, _ = e.networkFacts(n)
	readRecord(t.Context(), s, n.Definition, &facts)
	if facts.Lease.Held || facts.Lease.Record != nil || len(facts.Subnets) != 1 {
		t.Errorf("of a lease that is not held: %+v", facts.Lease)
	}
}

// TestPeersOfOneName: two records with the same name are two peers, each with its own answer.
func TestPeersOfOneName(t *testing.T) {
	lapsed, held := lease("b", "10.5.3.0/24", "192.0.2.3"), lease("b", "10.5.2.0/24", "192.0.2.2")
	lapsed.Session = ""
	skipped := peer(lease("c", "10.5.4.0/24", "192.0.2.4"))
	skipped.Skipped = "not reachable"
	n := newNetwork(t, peer(lapsed), skipped, peer(held))
	var asked []api.Peer
	n.Probe = func(ctx context.Context, peers []api.Peer, r api.ProbeRequest) (api.Probe, error) {
		asked = peers
		return reached(ctx, peers, r)
	}
	e := newExaminer(&store{})
	facts, _ := e.networkFacts(n)
	if inactive := e.probePeers(t.Context(), n, &facts); inactive != "" || facts.Probed != 2 {
		t.Fatalf("%d asked: %s", facts.Probed, inactive)
	}
	if asked[0].Subnets[0] != held.Subnet() || asked[1].Subnets[0] != lapsed.Subnet() {
		t.Errorf("hosts with a lease do not come first: %+v", asked)
	}
	for i, p := range facts.Peers {
		if p.Skipped != "" {
			if p.Probe != nil {
				t.Errorf("a peer that is not in the datapath was probed: %+v", p)
			}
			continue
		}
		if p.Probe == nil || p.Probe.Ways[0].To != n.Peers[i].Subnets[0].Addr() {
			t.Errorf("peer %d has the answer %+v", i, p.Probe)
		}
	}
}

// TestProbeTwice: kernels send few errors, so peers that answer with errors and were not reached are probed again.
func TestProbeTwice(t *testing.T) {
	for _, unheld := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var rounds [][]string
			var n Network
			n.Probe = func(_ context.Context, peers []api.Peer, _ api.ProbeRequest) (out api.Probe, err error) {
				var names []string
				for i, p := range peers {
					names = append(names, p.Node)
					out.Peers = append(out.Peers, api.PeerProbe{Node: p.Node, Reached: i == 0})
				}
				rounds = append(rounds, names)
				return out, nil
			}
			answers, err := probeTwice(t.Context(), n, []api.Peer{{Node: "b"}, {Node: "c"}}, unheld)
			want := [][]string{{"b", "c"}}
			if unheld {
				want = append(want, []string{"c"})
			}
			if diff := cmp.Diff(want, rounds); diff != "" || err != nil {
				t.Errorf("%v, probed (-want +got):\n%s", err, diff)
			}
			if len(answers) != 2 || answers[0].Node != "b" || answers[1].Node != "c" || answers[1].Reached != unheld {
				t.Errorf("%+v", answers)
			}
		})
	}
}

// TestJudgePaths: rules are read only if a peer was not reached, and answers of peers that have gone do not count.
func TestJudgePaths(t *testing.T) {
	b := peer(lease("b", "10.5.2.0/24", "192.0.2.2"))
	n, e := newNetwork(t, b), newExaminer(&store{})
	reads := 0
	e.ReadRules = func(context.Context, []foreign.OverlayPath, []foreign.UnderlayPath) (
		[]foreign.Obstacle, []foreign.Blockade, error,
	) {
		reads++
		return nil, nil, nil
	}
	answers, _ := reached(t.Context(), []api.Peer{b}, api.ProbeRequest{})
	gone := api.PeerProbe{Node: "gone"}
	e.JudgePaths(t.Context(), n, []api.Peer{b, {Node: gone.Node}}, append(answers.Peers, gone))
	if reads != 0 {
		t.Errorf("the rules were read %d times for peers that answer", reads)
	}
	if e.JudgePaths(t.Context(), n, []api.Peer{b}, []api.PeerProbe{{Node: "b"}}); reads != 1 {
		t.Errorf("the rules were read %d times for a peer that does not answer", reads)
	}
	if got := e.JudgePaths(t.Context(), n, nil, nil); got == nil || len(got) != 0 {
		t.Errorf("without peers: %+v", got)
	}
}

// TestStoreFacts: rights are checked if the store answers, or refuses.
func TestStoreFacts(t *testing.T) {
	for _, tt := range []struct {
		err    error
		rights int
	}{{nil, 1}, {registry.ErrDenied, 1}, {registry.ErrUnavailable, 0}} {
		got := storeFacts(t.Context(), &store{err: tt.err}, "a fake", registry.RequiredRights{})
		if got.Name != "a fake" || !errors.Is(got.Err, tt.err) || len(got.Rights) != tt.rights {
			t.Errorf("%v: %+v", tt.err, got)
		}
	}
	if got := storeFacts(t.Context(), memory.New().Client(), "a fake", registry.RequiredRights{}); got.Name != "" {
		t.Errorf("of a store that cannot be probed: %+v", got)
	}
}

func TestChecksOf(t *testing.T) {
	var h api.NetworkHealth
	for _, name := range health.Names() {
		h.Checks = append(h.Checks, api.Check{Name: name})
	}
	got := checksOf(h)
	for name, c := range map[string]api.Check{
		health.Network: got.Network, health.Underlay: got.Underlay, health.Lease: got.Lease,
		health.Conflict: got.Conflict, health.Device: got.Device, health.Routes: got.Routes,
	} {
		if c.Name != name {
			t.Errorf("%s: %+v", name, c)
		}
	}
	var others []string
	for _, c := range got.Others {
		others = append(others, c.Name)
	}
	want := []string{
		health.DataDir, health.Node, health.Login, health.Switch, health.Keys, health.Snapshot, health.Records, health.Firewall, health.SubnetFile,
	}
	if diff := cmp.Diff(want, others); diff != "" {
		t.Errorf("others (-want +got):\n%s", diff)
	}
}
