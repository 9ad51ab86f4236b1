package udp

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

const testLink = "leno-test"

// host is a namespace with an underlay and a container behind a bridge. Host n
// has the subnets 10.5.n.0/24 and fd00:5:0:n::/64, its container the addresses
// 10.5.n.2 and fd00:5:0:n::2.
type host struct {
	t         *testing.T
	n         int
	outer     int // family of the underlay, 4 or 6
	ns        *nstest.NS
	container *nstest.NS
	backend   *Backend
	state     backend.State
}

// underlayAddr returns the public address of host n.
func underlayAddr(outer, n int) string {
	if outer == 4 {
		return fmt.Sprintf("192.0.2.%d", n)
	}
	return fmt.Sprintf("2001:db8::%d", n)
}

func newHost(t *testing.T, outer, n int, peers ...backend.Peer) *host {
	t.Helper()
	h := &host{t: t, n: n, outer: outer, ns: nstest.New(t), container: nstest.New(t)}
	h.ns.KeepOrder()
	h.container.KeepOrder()
	h.ns.Sh(fmt.Sprintf(`echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
ip link add br0 type bridge
ip addr add 10.5.%[1]d.1/24 dev br0
ip addr add fd00:5:0:%[1]d::1/64 dev br0
ip link set br0 up`, n))
	nstest.Join(nstest.Joint{NS: h.ns, Link: "c0"}, nstest.Joint{NS: h.container, Link: "eth0", Addrs: []string{
		fmt.Sprintf("10.5.%d.2/24", n), fmt.Sprintf("fd00:5:0:%d::2/64", n)}})
	h.ns.Sh("ip link set c0 master br0")
	h.ns.Settle()
	h.container.Sh(fmt.Sprintf("ip route add default via 10.5.%[1]d.1; ip route add default via fd00:5:0:%[1]d::1", n))
	mtu := 1472
	if outer == 6 {
		mtu = 1452
	}
	h.state = backend.State{
		Subnets: prefixes(fmt.Sprintf("10.5.%d.0/24", n), fmt.Sprintf("fd00:5:0:%d::/64", n)),
		MTU:     mtu,
		Underlay: backend.Underlay{
			Interface: "eth0", MTU: 1500, Addrs: addrs(underlayAddr(outer, n)),
		},
		Peers: peers,
	}
	h.renew()
	return h
}

// newHosts returns hosts 1 and 2, joined, with each other as peers, and applied.
func newHosts(t *testing.T, outer int) (a, b *host) {
	t.Helper()
	a, b = newHost(t, outer, 1, labPeer(outer, 2)), newHost(t, outer, 2, labPeer(outer, 1))
	join(a, b)
	a.apply()
	b.apply()
	return a, b
}

func join(a, b *host) {
	bits := map[int]string{4: "/24", 6: "/64"}[a.outer]
	nstest.Join(
		nstest.Joint{NS: a.ns, Link: "eth0", Addrs: []string{underlayAddr(a.outer, a.n) + bits}},
		nstest.Joint{NS: b.ns, Link: "eth0", Addrs: []string{underlayAddr(b.outer, b.n) + bits}})
}

func labPeer(outer, n int) backend.Peer {
	return backend.Peer{
		Node:       fmt.Sprintf("host-%d", n),
		Subnets:    prefixes(fmt.Sprintf("10.5.%d.0/24", n), fmt.Sprintf("fd00:5:0:%d::/64", n)),
		PublicIPs:  addrs(underlayAddr(outer, n)),
		Backend:    Name,
		Attributes: json.RawMessage(`{"port":8285}`),
	}
}

// renew closes the host's backend and creates another, as a new process does.
func (h *host) renew() {
	h.t.Helper()
	if h.backend != nil {
		if err := h.backend.Close(); err != nil {
			h.t.Fatal(err)
		}
		nstest.AwaitForks()
	}
	h.backend = newTestBackend(h.t)
}

func newTestBackend(t *testing.T) *Backend {
	t.Helper()
	made, err := Type().New(backend.Config{
		Network: "test", Link: testLink, Pools: pools,
		Options: json.RawMessage(`{"port":8285}`), Logger: hclog.NewNullLogger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := made.Close(); err != nil {
			t.Error(err)
		}
	})
	return made.(*Backend)
}

// apply makes the host agree with its state, and checks that a second Apply changes nothing.
func (h *host) apply() backend.Report {
	h.t.Helper()
	report, err := h.tryApply(h.state)
	if err != nil {
		h.t.Fatalf("apply: %v", err)
	}
	again, err := h.tryApply(h.state)
	if err != nil || again.Writes != 0 || len(again.Repaired) != 0 {
		h.t.Fatalf("second apply: %+v, %v", again, err)
	}
	return report
}

func (h *host) tryApply(s backend.State) (report backend.Report, err error) {
	h.t.Helper()
	h.ns.Do(func() { report, err = h.backend.Apply(h.t.Context(), s) })
	return report, err
}

// dump returns what the kernel holds of the network, the same whether or not a process is attached.
func (h *host) dump() string {
	h.t.Helper()
	text := h.ns.Sh(`ip -o addr show dev ` + testLink + ` scope global
ip route show proto 108
ip -6 route show proto 108
ip -o link show dev ` + testLink + ` | sed 's/ state .*//; s/<.*>//'`)
	text = regexp.MustCompile(`\s+(linkdown|valid_lft forever preferred_lft forever|\\)`).ReplaceAllString(text, "")
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	slices.Sort(lines)
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// inner returns the addresses of host n's container, one per family.
func inner(n int) []string {
	return []string{fmt.Sprintf("10.5.%d.2", n), fmt.Sprintf("fd00:5:0:%d::2", n)}
}

// ping sends echo requests from inside ns until two are answered. The first may be answered with
// the path's MTU, on which ping gives up.
func ping(t *testing.T, ns *nstest.NS, to string, options ...string) string {
	t.Helper()
	command := fmt.Sprintf("ping -n -c 2 -i 0.02 -w 60 %s %s", strings.Join(options, " "), to)
	out, err := ns.Try(command)
	if err != nil && strings.Contains(out, "too big") {
		out, err = ns.Try(command)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

// pingRefused sends one echo request and returns the error reported for it.
func pingRefused(t *testing.T, ns *nstest.NS, to string, options ...string) string {
	t.Helper()
	out, err := ns.Try(fmt.Sprintf("ping -n -c 1 -W 20 %s %s", strings.Join(options, " "), to))
	if err == nil {
		t.Fatalf("ping %v %s was answered\n%s", options, to, out)
	}
	return out
}

// mustContain checks that a text from the kernel or a program contains the parts.
func mustContain(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("lacks %q:\n%s", part, text)
		}
	}
}

// inNS runs f inside a namespace and fails the test if f fails.
func inNS(t *testing.T, ns *nstest.NS, f func() error) {
	t.Helper()
	var err error
	ns.Do(func() { err = f() })
	if err != nil {
		t.Fatal(err)
	}
}

func addrPort(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }
