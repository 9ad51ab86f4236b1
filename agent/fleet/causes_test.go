package fleet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/hello"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/seed"
)

var now = time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)

func subnet(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
}

// fleet returns n hosts that reach each other, of which each says what the first one asked for: host-1 sees the others
// itself, the others have summaries.
func newFleet(n int) []Host {
	hosts := make([]Host, n)
	for i := range hosts {
		hosts[i].Host = api.Host{
			Node: fmt.Sprint("host-", i+1), Subnets: []netip.Prefix{subnet(i)}, Held: true, Own: i == 0, State: api.Passing,
			Summary: &api.HostSummary{Version: "0.1.0", Health: api.Passing, Peers: n - 1, Reached: n - 1, At: now},
		}
		if i > 0 {
			hosts[i].Path = &api.PeerPath{State: api.PathReached, Since: now.Add(-time.Hour), Tested: now}
		}
	}
	return hosts
}

// loses makes the path from one host to another lost, by the numbers in their names.
func loses(hosts []Host, from, to int) {
	if from == 1 {
		hosts[to-1].Path = &api.PeerPath{State: api.PathLost, Reason: "no packet is answered", Since: now}
	}
	s := hosts[from-1].Summary
	s.Reached--
	if len(s.Lost) < hello.MaxNamed {
		s.Lost = append(s.Lost, fmt.Sprint("host-", to))
	}
	if from == 1 {
		return
	}
	if hosts[from-1].Paths != nil {
		hosts[from-1].Paths[subnet(to-1)] = api.PeerPath{State: api.PathLost, Reason: "no packet is answered"}
	}
}

// apart makes the paths between two hosts lost in both directions.
func separate(hosts []Host, a, b int) {
	loses(hosts, a, b)
	loses(hosts, b, a)
}

// asked makes all hosts but the first say what they know when they are asked.
func ask(hosts []Host, state func(from, to int) api.PeerPath) {
	for i := range hosts {
		paths := map[netip.Prefix]api.PeerPath{}
		for j := range hosts {
			if p := state(i+1, j+1); j != i {
				paths[subnet(j)] = p
				if i == 0 {
					hosts[j].Path = &p
				}
			}
		}
		if i > 0 {
			hosts[i].Paths = paths
		}
	}
}

func reached(int, int) api.PeerPath { return api.PeerPath{State: api.PathReached} }

// lines returns findings as "status check: saw".
func lines(findings []Finding) (out []string) {
	for _, f := range findings {
		out = append(out, f.Status+" "+f.Check+": "+f.Saw)
	}
	return out
}

func TestMerge(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what  string
		hosts int
		fault func(h []Host)
		want  []string
	}{
		{"no fault", 5, func([]Host) {}, nil},
		{"no other hosts", 1, func([]Host) {}, nil},
		{"no hosts", 0, func([]Host) {}, nil},
		{"one host cut off", 4, func(h []Host) {
			for i := 1; i <= 4; i++ {
				if i != 3 {
					loses(h, i, 3)
				}
			}
			h[2].Summary.At = now.Add(-time.Minute) // from before
		}, []string{"fault paths: host-3 does not reach any other host: no packet is answered"}},
		{"one host cut off, as Consul knows", 4, func(h []Host) {
			for i := 1; i <= 4; i++ {
				if i != 3 {
					separate(h, i, 3)
				}
			}
			h[2].Member = api.MemberFailed
		}, []string{"fault paths: host-3 does not reach any other host, and Consul reports it as failed: no packet is answered"}},
		{"this host cut off, the others are from before", 4, func(h []Host) {
			for i := 2; i <= 4; i++ {
				loses(h, 1, i)
				h[i-1].Summary.At = now.Add(-time.Minute)
			}
		}, []string{"fault paths: host-1 does not reach any other host: no packet is answered"}},
		{"two hosts cut off", 6, func(h []Host) {
			for i := 1; i <= 6; i++ {
				for _, j := range []int{3, 5} {
					if i < j || i > j && i != 3 {
						separate(h, i, j)
					}
				}
			}
		}, []string{"fault paths: host-3 and host-5 do not reach any other host: no packet is answered"}},
		{"a pair", 4, func(h []Host) { separate(h, 1, 2) },
			[]string{"fault paths: host-1 and host-2 do not reach each other, both reach all others: no packet is answered"}},
		{"a pair of others", 4, func(h []Host) { separate(h, 2, 3) },
			[]string{"fault paths: host-2 and host-3 do not reach each other, both reach all others"}},
		{"one direction of a pair", 4, func(h []Host) { loses(h, 2, 3) },
			[]string{"fault paths: host-2 does not reach host-3, which reaches it"}},
		{"two hosts in all", 2, func(h []Host) { separate(h, 1, 2) },
			[]string{"fault paths: host-1 and host-2 do not reach each other: no packet is answered"}},
		{"only this host says something", 3, func(h []Host) {
			loses(h, 1, 3)
			h[1].Summary, h[2].Summary = nil, nil
		}, []string{"fault paths: host-3 does not reach any other host: no packet is answered"}},
		{"all", 4, func(h []Host) {
			for i := 1; i <= 4; i++ {
				for j := i + 1; j <= 4; j++ {
					separate(h, i, j)
				}
			}
			for i := range h {
				h[i].Summary.At = now.Add(time.Second)
			}
		}, []string{"fault paths: no host reaches another: no packet is answered"}},
		{"two groups", 6, func(h []Host) {
			for i := 1; i <= 4; i++ {
				separate(h, i, 5)
				separate(h, i, 6)
			}
			for i := range h {
				h[i].Summary.At = now.Add(time.Second)
			}
		}, []string{"fault paths: host-5 and host-6 reach each other, but not host-1, host-2, host-3 and host-4: no packet is answered"}},
		{"some paths of a host", 6, func(h []Host) {
			for _, i := range []int{2, 3, 4} {
				separate(h, 6, i)
			}
		}, []string{"fault paths: host-6 and 3 of 5 other hosts do not reach each other: host-2, host-3 and host-4"}},
		{"a host that drops what comes in", 4, func(h []Host) {
			ask(h, func(_, to int) api.PeerPath {
				if to == 3 {
					return api.PeerPath{State: api.PathLost, Reason: "no packet is answered"}
				}
				return reached(0, 0)
			})
		}, []string{"fault paths: no host reaches host-3, although it reaches the others: no packet is answered"}},
		{"a host that lies about all", 5, func(h []Host) {
			for _, i := range []int{1, 2, 3, 5} {
				loses(h, 4, i)
			}
		}, []string{"warning paths: host-4 reaches no other host, although they reach it"}},
		{"a host that lies about one", 5, func(h []Host) { loses(h, 4, 2) },
			[]string{"fault paths: host-4 does not reach host-2, which reaches it"}},
		{"a host that claims to be reached", 5, func(h []Host) {
			for _, i := range []int{1, 2, 3, 5} {
				loses(h, i, 4)
			}
			h[3].Summary.At = now.Add(time.Minute)
		}, []string{"fault paths: no host reaches host-4, although it reaches the others: no packet is answered"}},
		{"a summary about hosts that are not there", 4, func(h []Host) {
			h[2].Summary = &api.HostSummary{Health: api.Warning, Peers: 900, Lost: []string{"x", "host-3", "y"}, At: now}
		}, nil},
		{"MTU and loss by summaries", 4, func(h []Host) {
			for i, name := range []string{"host-3", "host-2"} {
				s := h[i+1].Summary
				s.Health, s.Reason, s.Impaired, s.Short = api.Warning, "paths: packets are lost to 1 of 3 hosts", 1, []string{name}
			}
			h[3].Summary.Impaired, h[3].Summary.Lossy = 1, []string{"host-2"}
		}, []string{"fault path_mtu: full-size packets are lost between host-2 and host-3",
			"fault loss: some packets are lost between host-2 and host-4"}},
		{"MTU of one host", 4, func(h []Host) {
			ask(h, func(from, to int) api.PeerPath {
				if from == 3 || to == 3 {
					return api.PeerPath{State: api.PathShort, MTU: 1400, Reason: "IPv4 packets above 1400 bytes are lost"}
				}
				return reached(0, 0)
			})
		}, []string{"fault path_mtu: MTU 1400 on every path of host-3"}},
		{"MTU everywhere", 4, func(h []Host) {
			ask(h, func(from, to int) api.PeerPath { return api.PeerPath{State: api.PathShort, MTU: 1380 + from + to} })
		}, []string{"fault path_mtu: MTU 1383 on every path"}},
		{"MTU of a pair", 4, func(h []Host) {
			ask(h, func(from, to int) api.PeerPath {
				if from+to == 5 && from*to == 6 {
					return api.PeerPath{State: api.PathShort, MTU: 1300}
				}
				return reached(0, 0)
			})
		}, []string{"fault path_mtu: MTU 1300 between host-2 and host-3"}},
		{"loss of one host", 4, func(h []Host) {
			ask(h, func(from, to int) api.PeerPath {
				if from == 3 || to == 3 {
					return api.PeerPath{State: api.PathLossy, Loss: 0.1 + float64(from+to)/100}
				}
				return reached(0, 0)
			})
		}, []string{"fault loss: packets are lost on every path of host-3, up to 17 %"}},
		{"loss beside a host that is cut off", 4, func(h []Host) {
			ask(h, func(from, to int) api.PeerPath {
				switch {
				case from == 4 || to == 4:
					return api.PeerPath{State: api.PathLost}
				case from+to == 3:
					return api.PeerPath{State: api.PathLossy, Loss: 0.25}
				}
				return reached(0, 0)
			})
		}, []string{"fault paths: host-4 does not reach any other host", "fault loss: packets are lost between host-1 and host-2, up to 25 %"}},
		{"Consul fails alone", 4, func(h []Host) { h[1].Member, h[3].Member = api.MemberFailed, api.MemberFailed },
			[]string{"warning members: Consul's agents do not reach the Consul agents of host-2 and host-4, and no packet loss was found"}},
		{"a lapsed lease", 3, func(h []Host) {
			h[1].Held, h[1].Path, h[1].Member = false, &api.PeerPath{State: api.PathLost}, api.MemberFailed
		}, nil},
		{"checks", 4, func(h []Host) {
			for _, i := range []int{1, 3} {
				h[i].Summary.Health, h[i].Summary.Reason = api.Critical, "device: operation not permitted"
			}
			h[2].Summary.Health, h[2].Summary.Reason = api.Warning, "consul: no leader"
		}, []string{"fault health: host-2 and host-4: device: operation not permitted", "warning health: host-3: consul: no leader"}},
		{"health without a reason", 3, func(h []Host) { h[1].Summary.Health = api.Critical },
			[]string{"fault health: host-2: its health is critical"}},
		{"a check beside a path that is lost", 4, func(h []Host) {
			separate(h, 2, 3)
			h[1].Summary.Health, h[1].Summary.Reason = api.Warning, "routes: packets leave by ts0"
			h[2].Summary.Health, h[2].Summary.Reason = api.Warning, "paths: packets are lost to 1 of 3 hosts"
		}, []string{"fault paths: host-2 and host-3 do not reach each other, both reach all others", "warning health: host-2: routes: packets leave by ts0"}},
		{"examinations", 3, func(h []Host) {
			for i := range h {
				h[i].Findings = []api.Finding{{Check: "forward", Status: api.FindingFault, Saw: "rules drop packets"}, {Check: "x", Status: api.FindingOK}}
			}
		}, []string{"fault forward: host-1, host-2 and host-3: rules drop packets"}},
	} {
		h := newFleet(tt.hosts)
		tt.fault(h)
		got := Merge("n", h)
		if diff := cmp.Diff(tt.want, lines(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.what, diff)
		}
		if i := slices.IndexFunc(got, func(f Finding) bool { return f.Docs != "troubleshooting/checks#"+f.Check }); i >= 0 {
			t.Errorf("%s: %+v does not link to its section", tt.what, got[i])
		}
	}
}

// TestMergeRemedy: what a host reports of itself comes before what is between the hosts.
func TestMergeRemedy(t *testing.T) {
	t.Parallel()
	h := newFleet(4)
	separate(h, 2, 3)
	const between = "run `leno doctor` on host-2 and on host-3, and check the switches and firewalls between them"
	if got := Merge("n", h)[0].Do; got != between {
		t.Errorf("%q", got)
	}
	h[1].Summary.Health, h[1].Summary.Reason = api.Warning, "routes: packets leave by ts0"
	if got := Merge("n", h)[0].Do; got != "look first at what host-2 reports of itself, then "+between {
		t.Errorf("%q", got)
	}
}

// TestMergeSameNames: hosts that share a name are told apart where a host was asked, and say nothing by their name.
func TestMergeSameNames(t *testing.T) {
	t.Parallel()
	h := newFleet(5)
	h[3].Node = "host-3"
	loses(h, 2, 3)
	if got := lines(Merge("n", h)); got != nil {
		t.Errorf("one of two hosts of a name: %q", got)
	}
}

// TestMergeLarge: half of 1,000 hosts are down, by all ways to know it, and a host lies. The causes are few and short.
func TestMergeLarge(t *testing.T) {
	t.Parallel()
	isDown := func(i int) bool { return i%2 == 0 }
	const n, liar = 1000, 7
	for _, isAsked := range []bool{false, true} {
		h := newFleet(n)
		for i := 1; i <= n; i++ {
			if isDown(i) {
				h[i-1].Summary.At = now.Add(-time.Hour)
				h[i-1].Member = api.MemberFailed
				continue
			}
			if isAsked && i > 1 {
				h[i-1].Paths = map[netip.Prefix]api.PeerPath{}
				for j := 1; j <= n; j++ {
					h[i-1].Paths[subnet(j-1)] = reached(0, 0)
				}
			}
			for j := 1; j <= n; j++ {
				if isDown(j) || i == liar && j != i {
					loses(h, i, j)
				}
			}
		}
		began := time.Now()
		got := Merge("n", h)
		t.Logf("asked: %v: %s, %q", isAsked, time.Since(began), lines(got))
		if len(got) != 2 || !strings.Contains(got[0].Saw, "and 495 more do not reach any other host, and Consul reports them as failed") ||
			got[0].Status != api.FindingFault || len(got[0].Hosts) != n/2 || !slices.Equal(got[1].Hosts, []string{"host-7"}) {
			t.Errorf("asked: %v: %q", isAsked, lines(got))
		}
	}
}

// TestMergeBounds: no input makes many or long findings.
func TestMergeBounds(t *testing.T) {
	t.Parallel()
	h := newFleet(400)
	for i := range h {
		h[i].Summary.Health, h[i].Summary.Reason = api.Critical, fmt.Sprint("check: reason ", i)
		for _, check := range []string{"a", "b"} {
			if i > 0 {
				h[i].Findings = append(h[i].Findings, api.Finding{Check: check, Status: api.FindingFault, Saw: fmt.Sprint(i)})
			}
		}
	}
	for i := 1; i < 400; i += 2 {
		separate(h, i, i+1)
	}
	if got := Merge("n", h); len(got) > 4*maxFindings {
		t.Errorf("%d findings", len(got))
	} else if !slices.ContainsFunc(got, func(f Finding) bool { return f.Saw == "and 180 more findings about lost packets" }) {
		t.Errorf("%q", lines(got))
	}
}

// FuzzMerge: whatever hosts say, each finding names known hosts and has a sentence.
func FuzzMerge(f *testing.F) {
	f.Add(uint8(5), []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add(uint8(3), []byte{1, 1, 1, 1, 1, 1, 1, 1, 1})
	states := []string{api.PathReached, api.PathLost, api.PathShort, api.PathLossy, ""}
	f.Fuzz(func(t *testing.T, n uint8, said []byte) {
		h := newFleet(int(n % 12))
		at := func(i int) byte {
			if len(said) == 0 {
				return 0
			}
			return said[i%len(said)]
		}
		ask(h, func(from, to int) api.PeerPath { return api.PeerPath{State: states[int(at(from*13+to))%len(states)]} })
		for i := range h {
			switch at(200+i) % 3 {
			case 0:
				h[i].Paths = nil
				h[i].Summary.Reached = int(at(300 + i))
				h[i].Summary.Lost = []string{fmt.Sprint("host-", at(i)%13)}
			case 1:
				h[i].Summary = nil
			}
		}
		for _, finding := range Merge("n", h) {
			if finding.Saw == "" || len(finding.Hosts) == 0 || finding.Network != "n" {
				t.Errorf("%+v", finding)
			}
		}
	})
}

// TestLiar: whatever one host says of its paths, and whatever the others have not said or tested yet, no finding blames
// another host alone.
func TestLiar(t *testing.T) {
	t.Parallel()
	r := seed.Rand(t)
	for range 5000 {
		n := 2 + r.IntN(6)
		hosts := newFleet(n)
		for i := range hosts {
			if r.IntN(4) == 0 {
				hosts[i].Summary = nil
			}
			if r.IntN(4) == 0 {
				hosts[i].Path = nil
			}
		}
		said := &api.HostSummary{Health: api.Passing, Peers: n - 1, Reached: r.IntN(n), At: now}
		for i := range hosts {
			if i != 1 && r.IntN(2) == 0 {
				said.Lost = append(said.Lost, hosts[i].Node)
			}
		}
		if r.IntN(2) == 0 {
			said.Reached = n - 1 - len(said.Lost)
		}
		hosts[1].Summary = said
		for _, f := range Merge("n", hosts) {
			if !strings.Contains(strings.Join(f.Hosts, " ")+f.Saw, hosts[1].Node) {
				t.Fatalf("host-2 of %d hosts says that it does not reach %q and reaches %d: %s of %q: %s",
					n, said.Lost, said.Reached, f.Status, f.Hosts, f.Saw)
			}
		}
	}
}

// TestMergeSaysWhatFits: the finding about a path that is too small names the option that fits, and its value.
func TestMergeSaysWhatFits(t *testing.T) {
	t.Parallel()
	h := newFleet(3)
	h[2].Path.State, h[2].Path.MTU = api.PathShort, 1400
	want := "raise the MTU on the way between host-1 and host-3, or set `mtu = 1400` in the network's backend block " +
		"(`leno network apply`)"
	if got := Merge("n", h)[0].Do; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
