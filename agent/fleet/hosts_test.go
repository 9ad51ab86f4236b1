package fleet

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// known returns what host-1 knows of n hosts, all in order.
func known(n int) Known {
	k := Known{NodeID: "id-1", Own: api.HostSummary{Health: api.Passing}, Summaries: map[netip.Prefix]api.HostSummary{},
		Member: func(string, []netip.Addr) string { return "alive" }}
	for i := range n {
		l := registry.Lease{Node: fmt.Sprint("host-", i+1), NodeID: fmt.Sprint("id-", i+1), Subnets: []netip.Prefix{subnet(i)}, Session: "s", MTU: 1450,
			PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}, Backend: registry.Backend{Type: "vxlan"}}
		k.Leases = append(k.Leases, l)
		if i == 0 {
			continue
		}
		k.Peers = append(k.Peers, api.Peer{Node: l.Node, Subnets: l.Subnets, Held: true,
			Path: &api.PeerPath{State: api.PathReached, Since: now.Add(-time.Hour), Tested: now.Add(-time.Second)}})
		k.Summaries[subnet(i)] = api.HostSummary{Version: "0.1.0", Health: api.Passing, Peers: n - 1, Reached: n - 1, At: now.Add(-time.Minute)}
	}
	return k
}

func TestHosts(t *testing.T) {
	t.Parallel()
	failed := func(_ string, addrs []netip.Addr) string {
		if addrs[0] == netip.MustParseAddr("192.0.2.2") {
			return api.MemberFailed
		}
		return "alive"
	}
	lost := &api.PeerPath{State: api.PathLost, Reason: "no packet is answered", Since: now}
	for _, tt := range []struct {
		what  string
		fault func(k *Known)
		want  []string // of the hosts that are not passing
	}{
		{"no fault", func(*Known) {}, nil},
		{"failed, and answers", func(k *Known) { k.Member = failed },
			[]string{"host-2 failed: Consul's agents report its Consul agent as failed; packets reach the host"}},
		{"failed, and is lost", func(k *Known) { k.Member, k.Peers[0].Path = failed, lost },
			[]string{"host-2 failed: Consul's agents report its Consul agent as failed; no packet is answered"}},
		{"lost", func(k *Known) { k.Peers[0].Path = lost }, []string{"host-2 lost: no packet is answered"}},
		{"lapsed", func(k *Known) { k.Leases[1].Session, k.Peers[0].Path = "", lost }, []string{"host-2 lapsed: its lease is no longer held"}},
		{"short", func(k *Known) { k.Peers[0].Path = &api.PeerPath{State: api.PathShort, Reason: "full ones"} }, []string{"host-2 short: full ones"}},
		{"critical", func(k *Known) { k.Summaries[subnet(1)] = api.HostSummary{Health: api.Critical, Reason: "device: gone"} },
			[]string{"host-2 critical: device: gone"}},
		{"this host", func(k *Known) { k.Own.Health, k.Own.Reason = api.Warning, "consul: no answer" }, []string{"host-1 warning: consul: no answer"}},
		{"left out", func(k *Known) { k.Peers[0].Skipped = "its address is used twice" },
			[]string{"host-2 warning: not in the datapath: its address is used twice"}},
		{"nothing is told", func(k *Known) { delete(k.Summaries, subnet(1)) }, []string{"host-2 unknown: "}},
		{"an unknown health", func(k *Known) { k.Summaries[subnet(1)] = api.HostSummary{Health: "splendid"} }, []string{"host-2 unknown: "}},
		{"the worst first", func(k *Known) {
			k.Summaries[subnet(0)] = api.HostSummary{Health: api.Critical} // of another host that says it is this one
			k.Summaries[subnet(2)] = api.HostSummary{Health: api.Warning, Reason: "w"}
			k.Peers[2].Path = lost
			delete(k.Summaries, subnet(1))
		}, []string{"host-4 lost: no packet is answered", "host-3 warning: w", "host-2 unknown: "}},
	} {
		k := known(4)
		tt.fault(&k)
		var got []string
		hosts := Hosts(k)
		for _, h := range hosts {
			if h.State != api.Passing {
				got = append(got, fmt.Sprintf("%s %s: %s", h.Node, h.State, h.Reason))
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || len(hosts) != 4 {
			t.Errorf("%s: %d hosts (-want +got):\n%s", tt.what, len(hosts), diff)
		}
	}
}

func TestSeen(t *testing.T) {
	t.Parallel()
	k := known(4)
	k.Peers[1].Path = &api.PeerPath{State: api.PathLost, Since: now.Add(-time.Hour), Tested: now}
	k.Peers[2].Path = nil
	got := map[string]time.Time{}
	for _, h := range Hosts(k) {
		got[h.Node] = h.Seen
	}
	want := map[string]time.Time{"host-1": {}, "host-2": now.Add(-time.Second), "host-3": now.Add(-time.Minute), "host-4": now.Add(-time.Minute)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSummarize(t *testing.T) {
	t.Parallel()
	health := api.Health{Checks: []api.Check{{Name: "consul", Status: api.Warning, Reason: "no leader"}}, Networks: []api.NetworkHealth{
		{Network: "n", Checks: []api.Check{{Name: "lease", Status: api.Passing, Reason: "held"}, {Name: "device", Status: api.Critical, Reason: "gone"}}},
		{Network: "other", Checks: []api.Check{{Name: "device", Status: api.Critical, Reason: "another"}}},
	}}
	local := api.Local{Backend: "udp", MTU: 1472, Underlay: api.Underlay{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}
	got := Summarize("0.1.0", local, health, "n", now)
	want := api.HostSummary{Version: "0.1.0", Health: api.Critical, Reason: "device: gone", Backend: "udp", PublicIP: "192.0.2.1", MTU: 1472, At: now}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestOwnPaths: this host says of itself which hosts it reaches.
func TestOwnPaths(t *testing.T) {
	t.Parallel()
	k := known(1)
	k.Peers = []api.Peer{{Node: "a", Held: true, Path: &api.PeerPath{State: api.PathLossy}}, {Node: "b", Held: true}, {Node: "c"},
		{Node: "d", Held: true, Path: &api.PeerPath{State: api.PathLost}}, {Node: "e", Held: true, Path: &api.PeerPath{State: api.PathShort}}}
	want := api.HostSummary{Health: api.Passing, Peers: 4, Reached: 2, Lost: []string{"d"}, Impaired: 2, Short: []string{"e"}, Lossy: []string{"a"}}
	if diff := cmp.Diff(&want, Hosts(k)[0].Summary, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestShortenReason: a reason that is too long ends before a command, not in it.
func TestShortenReason(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 180)
	for reason, want := range map[string]string{
		"routes: gone; `ip route add`":                      "routes: gone; `ip route add`",
		long + "; `ip rule add to 10.5.0.0/16 lookup main`": long,
		long + " `ip rule add to 10.5.0.0/16 lookup main`":  long + "…",
		long + " ends without any command at all":           long + " ends without any…",
	} {
		if got := shortenReason(reason); got != want {
			t.Errorf("%q: %q, want %q", reason, got, want)
		}
	}
}

// TestWithoutTimes: what is measured again and again is no change, and the hosts themselves stay as they are.
func TestWithoutTimes(t *testing.T) {
	t.Parallel()
	k := known(3)
	before := Hosts(k)
	k.Peers[0].Path = &api.PeerPath{State: api.PathReached, Since: now.Add(-time.Hour), Tested: now, RTT: 0.1}
	s := k.Summaries[subnet(2)]
	s.At = now
	k.Summaries[subnet(2)], k.Own.At = s, now
	after := Hosts(k)
	if diff := cmp.Diff(WithoutTimes(before), WithoutTimes(after), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Error(diff)
	}
	if after[0].Summary.At != now || after[1].Path.RTT != 0.1 {
		t.Errorf("%+v", after)
	}
}
