package host

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// probeNetworks are the networks of TestProbe, one for each backend that carries packets.
var probeNetworks = []string{"vxlan", "host-gw", "udp", "wireguard"}

// probes runs `leno peers -probe` on a host for several networks in parallel. It returns each
// network's probe as one line "node: reached, largest packets, directions" per peer.
func (w *testWorld) probes(h *lab.Host, networks ...string) map[string]string {
	w.T.Helper()
	told := make([]string, len(networks))
	var runs errgroup.Group
	for i, network := range networks {
		runs.Go(func() (err error) {
			told[i], err = w.probe(h, network)
			return err
		})
	}
	w.Must(runs.Wait())
	out := map[string]string{}
	for i, network := range networks {
		out[network] = told[i]
	}
	return out
}

func (w *testWorld) probe(h *lab.Host, network string) (string, error) {
	text, failed := h.Leno(w.Ctx, "peers", network, "-probe", "-format=json", "-count=2")
	var got api.Probe
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		return "", fmt.Errorf("%s: %w: %w: %s", network, failed, err, text)
	}
	var lines []string
	cut := false
	for _, p := range got.Peers {
		cut = cut || p.Held && !p.Reached
		line := fmt.Sprintf("%s: reached %v", p.Node, p.Reached)
		for _, way := range p.Ways {
			line += fmt.Sprintf(", %s %d", way.Path, way.Largest)
			if way.Small.Lost()+way.Full.Lost() > 0 && way.Largest > 0 {
				line += " with losses"
				cut = true
			}
		}
		if p.ToPeer != nil {
			line += fmt.Sprintf(", there %s, back %s", p.ToPeer.State, p.FromPeer.State)
		}
		if slices.ContainsFunc(p.Ways, func(way api.ProbedWay) bool {
			return slices.ContainsFunc(way.Errors, func(e api.ProbeError) bool { return e.Reason == "port unreachable" && e.About != "" })
		}) {
			line += ", refused"
		}
		lines = append(lines, line)
	}
	for _, f := range got.Findings {
		w.T.Logf("%s: %s %s of %q: saw %s; do %s", network, f.Status, f.Check, f.Peer, f.Saw, f.Do)
		cut = cut || f.Status == api.FindingFault
	}
	if cut != (failed != nil) {
		return "", fmt.Errorf("%s: %v, though packets got lost: %v\n%s", network, failed, cut, text)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// isLossy reports whether a probe lost packets, of which it should have lost none.
func isLossy(got, want string) bool {
	return strings.Contains(got, " with losses") || strings.Count(got, "reached true") < strings.Count(want, "reached true")
}

// TestProbe checks what `leno peers -probe` reports for healthy hosts, for a tunnel that loses one
// direction, for a host whose agent has stopped, and for a host that is gone.
func TestProbe(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.Start(func(h *lab.Host) []string {
		blocks := []string{world.ShortLease}
		for i, backend := range probeNetworks {
			blocks = append(blocks, h.Network(backend, fmt.Sprintf("ipv4 {\n prefix = \"10.%d.0.0/16\"\n}\nipv6 {\n prefix = \"fd00:%[1]d::/48\"\n}\nbackend %[2]q {}\nip_masq = true\n", 5+i, backend)))
		}
		return blocks
	})
	for _, network := range probeNetworks {
		w.Settle(network)
	}
	tunnels := []string{"vxlan", "udp", "wireguard"}
	a, b, c := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	// All networks are probed at once, and the kernel limits the errors that say that a port is not used.
	_, err := c.Exec(w.Ctx, "sysctl", "-qw", "net.ipv4.icmp_ratelimit=0")
	w.Must(err)
	well := map[string]string{
		"vxlan":     "reached true, overlay 1450, overlay 1450, underlay 1500",
		"host-gw":   "reached true, overlay 1500, overlay 1500, underlay 1500, underlay 1500",
		"udp":       "reached true, overlay 1472, overlay 1472, underlay 1500",
		"wireguard": "reached true, overlay 1440, overlay 1440, underlay 1500",
	}
	expect := func(what string, networks []string, onB, onC map[string]string) {
		t.Helper()
		wanted := func(network string) string {
			want := map[*lab.Host]string{b: well[network], c: well[network]}
			if text, ok := onB[network]; ok {
				want[b] = text
			}
			if text, ok := onC[network]; ok {
				want[c] = text
			}
			return fmt.Sprintf("%s: %s\n%s: %s", b.Name, want[b], c.Name, want[c])
		}
		for network, got := range w.probes(a, networks...) {
			want := wanted(network)
			// A busy machine loses packets, but not each time. Nothing else is tried again.
			for try := 0; try < 10 && isLossy(got, want); try++ {
				t.Logf("%s, network %s: again, because of losses:\n%s", what, network, got)
				got = w.probes(a, network)[network]
			}
			if got != want {
				t.Errorf("%s, network %s:\n%s\nwant\n%s", what, network, got, want)
			}
		}
	}
	const silent = "reached false, overlay 0, overlay 0, underlay 1500, "
	drop := func(hook string) {
		t.Helper()
		_, err := b.Exec(w.Ctx, "sh", "-ec", "nft add table inet fault; nft 'add chain inet fault c { type filter hook "+hook+" priority 0; }'; nft 'add rule inet fault c udp dport { 8472, 8285, 51820 } drop'")
		w.Must(err)
	}
	mend := func() {
		t.Helper()
		_, err := b.Exec(w.Ctx, "nft", "delete", "table", "inet", "fault")
		w.Must(err)
	}

	expect("well", probeNetworks, nil, nil)
	drop("input")
	expect("lost on the way there", tunnels, map[string]string{"vxlan": silent + "there lost, back passes", "udp": silent + "there lost, back passes", "wireguard": silent + "there lost, back passes"}, nil)
	mend()
	drop("output")
	w.Must(c.StopAgent(w.Ctx))
	expect("lost on the way back, and an agent stopped", probeNetworks,
		map[string]string{"vxlan": silent + "there passes, back lost", "udp": silent + "there unknown, back unknown", "wireguard": silent + "there unknown, back unknown"},
		map[string]string{"udp": silent + "there unknown, back unknown, refused", "wireguard": silent + "there unknown, back unknown, refused"})
	mend()
	w.Must(c.Cut(w.Ctx))
	const gone = "reached false, overlay 0, overlay 0, underlay 0"
	expect("a host gone", tunnels, nil, map[string]string{"vxlan": gone, "udp": gone, "wireguard": gone})
}
