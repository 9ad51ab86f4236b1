package backendtest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/internal/testkit/waiting"
)

const (
	network  = "test"
	linkName = "leno-test"
	underlay = "eth0"
)

func pools() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00:5::/48")}
}

// subnets returns the n-th subnet of each pool.
func subnets(n int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", n)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:5:0:%x::/64", n)),
	}
}

// host is one machine: a namespace with an underlay interface and a backend.
type host struct {
	t      *testing.T
	suite  Suite
	ns     *nstest.NS
	number int // its subnet and the last byte of its public addresses
	node   string
	dir    string // has the state directory of each node
	link   string // the name of the network's device
	alias  string // and its alias, "" for the default
	b      backend.Backend
	except []netip.Prefix // what other networks of the host use, for the next backend

	// elsewhere returns a namespace with the same underlay and no device of the network.
	elsewhere func() *nstest.NS
}

func (s Suite) publicIPs(n int) []netip.Addr {
	v6 := netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", n))
	if s.IPv6Underlay {
		return []netip.Addr{v6}
	}
	return []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), v6}
}

// newHosts joins host 1 and host 2 by their underlay.
func newHosts(t *testing.T, s Suite) (a, b *host) {
	t.Helper()
	hosts := [2]*host{}
	joints := [2]nstest.Joint{}
	for i := range hosts {
		n := i + 1
		hosts[i] = &host{t: t, suite: s, ns: nstest.New(t), number: n, node: fmt.Sprintf("node-%d", n), dir: t.TempDir(), link: linkName}
		joints[i] = nstest.Joint{NS: hosts[i].ns, Link: underlay}
		for _, ip := range s.publicIPs(n) {
			bits := map[bool]int{true: 24, false: 64}[ip.Is4()]
			joints[i].Addrs = append(joints[i].Addrs, netip.PrefixFrom(ip, bits).String())
		}
	}
	nstest.Join(joints[0], joints[1])
	for _, h := range hosts {
		h.elsewhere = sync.OnceValue(h.newElsewhere)
		h.settled()
		h.b = h.open(h.node)
	}
	return hosts[0], hosts[1]
}

// newHost returns host 1 alone; no backend runs at the other end of its underlay.
func newHost(t *testing.T, s Suite) *host {
	t.Helper()
	h, _ := newHosts(t, s)
	return h
}

// settled waits until the kernel has finished what it does by itself after a device came up.
func (h *host) settled() {
	h.t.Helper()
	h.poll("the underlay comes up", func() error {
		if out := h.ns.Sh("ip -o link show " + underlay + "; ip -o -6 addr show dev " + underlay); !strings.Contains(out, "LOWER_UP") ||
			strings.Contains(out, "tentative") || !strings.Contains(out, "fe80:") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}

func (h *host) poll(what string, check func() error) {
	h.t.Helper()
	waiting.Eventually(h.t, func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

func (h *host) config(node string) backend.Config {
	h.t.Helper()
	options, err := h.suite.Type.Normalize(json.RawMessage(h.suite.Options))
	if err != nil {
		h.t.Fatalf("normalize: %v", err)
	}
	return backend.Config{
		Network: network, Link: h.link, Alias: h.alias, NodeID: node, DataDir: filepath.Join(h.dir, node), Pools: pools(),
		Except: h.except, Options: options, Logger: hclog.NewNullLogger(),
	}
}

// open builds a backend in the host; it is closed when the test ends.
func (h *host) open(node string) backend.Backend {
	h.t.Helper()
	b, err := h.suite.Type.New(h.config(node))
	if err != nil {
		h.t.Fatalf("new: %v", err)
	}
	h.t.Cleanup(func() {
		if err := b.Close(); err != nil {
			h.t.Errorf("close: %v", err)
		}
	})
	return b
}

// restart replaces the backend by a new one, as a new process would.
func (h *host) restart() {
	h.t.Helper()
	if err := h.b.Close(); err != nil {
		h.t.Fatalf("close: %v", err)
	}
	nstest.AwaitForks()
	h.b = h.open(h.node)
}

func (h *host) underlay() backend.Underlay {
	return backend.Underlay{Interface: underlay, Index: h.ns.Index(underlay), MTU: 1500, Addrs: h.suite.publicIPs(h.number)}
}

// advertise returns what b advertises in the host.
func (h *host) advertise(b backend.Backend) backend.Advertisement {
	h.t.Helper()
	var adv backend.Advertisement
	h.ns.Do(func() {
		var err error
		if adv, err = b.Advertise(h.underlay()); err != nil {
			h.t.Fatalf("advertise: %v", err)
		}
	})
	return adv
}

// advertiseAfresh returns what another host with the same underlay advertises, which has no device
// of the network yet.
func (h *host) advertiseAfresh(node string) backend.Advertisement {
	h.t.Helper()
	other := *h
	other.ns = h.elsewhere()
	return other.advertise(h.open(node))
}

func (h *host) newElsewhere() *nstest.NS {
	ns := nstest.New(h.t)
	script := "ip link add " + underlay + " type veth; ip link set " + underlay + " up"
	for _, ip := range h.suite.publicIPs(h.number) {
		script += fmt.Sprintf("; ip addr add %s dev %s nodad", netip.PrefixFrom(ip, ip.BitLen()), underlay)
	}
	ns.Sh(script)
	return ns
}

// peer returns what host n would publish under the identity node before it has a device. Attributes
// then depend only on the identity, so this host's own underlay can be used.
func (h *host) peer(n int, node string) backend.Peer {
	h.t.Helper()
	return backend.Peer{
		Node: fmt.Sprintf("host-%d", n), Subnets: subnets(n), PublicIPs: h.suite.publicIPs(n),
		Backend: h.suite.Type.Name, Attributes: h.advertiseAfresh(node).Attributes,
	}
}

// state returns a state with the host's own part and the given peers.
func (h *host) state(peers ...backend.Peer) backend.State {
	h.t.Helper()
	return backend.State{Subnets: subnets(h.number), MTU: h.advertise(h.b).MTU, Underlay: h.underlay(), Peers: peers}
}

// tryApply applies a state inside the host.
func (h *host) tryApply(s backend.State) (r backend.Report, err error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*time.Minute)
	defer cancel()
	h.ns.Do(func() { r, err = h.b.Apply(ctx, s) })
	for _, repair := range r.Repaired {
		if repair.Part != backend.Device && repair.Part != backend.Routes {
			h.t.Errorf("%q is about the part %q", repair, repair.Part)
		}
		if !slices.Contains(backend.Faults(), repair.Fault) {
			h.t.Errorf("%q is not among backend.Faults", repair.Fault)
		}
	}
	return r, err
}

// wantPart checks that err is entirely about one part of the datapath.
func wantPart(t *testing.T, err error, part backend.Part) {
	t.Helper()
	if parts := backend.ByPart(err); len(parts) != 1 || parts[part] == nil {
		t.Errorf("%v is about %v, want %s", err, slices.Collect(maps.Keys(parts)), part)
	}
}

func (h *host) apply(s backend.State) backend.Report {
	h.t.Helper()
	r, err := h.tryApply(s)
	if err != nil {
		h.t.Fatalf("apply: %v", err)
	}
	return r
}

// unchanged applies a state that is already in place: nothing may be written, reported as repaired,
// or seen by the kernel's listeners. It polls, because what the kernel still does by itself after
// an earlier change ends at some point, while repeated writes by a backend do not.
func (h *host) unchanged(s backend.State) {
	h.t.Helper()
	h.poll("a second apply makes no events", func() error {
		events := h.events(func() {
			if r := h.apply(s); r.Writes != 0 || len(r.Repaired) != 0 {
				h.t.Fatalf("second apply wrote: %+v", r)
			}
		})
		if len(events) > 0 {
			return fmt.Errorf("the kernel tells of\n%s", strings.Join(events, "\n"))
		}
		return nil
	})
}

// wantLines checks that every line of a dump is in another one from now, which may have more.
func (h *host) wantLines(before string) {
	h.t.Helper()
	h.poll("dump", func() error {
		after := h.dump()
		for line := range strings.SplitSeq(before, "\n") {
			if !strings.Contains(after, line) {
				return fmt.Errorf("lost: %s", line)
			}
		}
		return nil
	})
}

func (h *host) wantDump(want string) {
	h.t.Helper()
	h.poll("dump", func() error {
		if got := h.dump(); got != want {
			return fmt.Errorf("the host has, unlike before,\n%s\nand in all\n%s", diff(got, want), got)
		}
		return nil
	})
}

// diff returns the lines that occur more often on one side.
func diff(got, want string) string {
	more := map[string]int{}
	for line := range strings.SplitSeq(got, "\n") {
		more[line]++
	}
	for line := range strings.SplitSeq(want, "\n") {
		more[line]--
	}
	var b strings.Builder
	for _, line := range slices.Sorted(maps.Keys(more)) {
		for range more[line] {
			fmt.Fprintf(&b, "+ %s\n", line)
		}
		for range -more[line] {
			fmt.Fprintf(&b, "- %s\n", line)
		}
	}
	return b.String()
}
