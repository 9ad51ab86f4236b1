package wireguard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// host is a namespace with an underlay and the addresses 10.5.n.1 and fd00:5:0:n::1, which stand for its containers.
type host struct {
	t       *testing.T
	kind    backend.Type
	n       int
	ns      *nstest.NS
	options string
	dir     string
	backend *Backend
	state   backend.State
	at      *backend.Underlay // nil for eth0 with the host's addresses of newHosts
}

func pools() []netip.Prefix { return prefixes("10.5.0.0/16", "fd00:5::/48") }

func subnets(n int) []netip.Prefix {
	return prefixes(fmt.Sprintf("10.5.%d.0/24", n), fmt.Sprintf("fd00:5:0:%d::/64", n))
}

// inner returns the addresses of host n's containers, one per family.
func inner(n int) []string {
	return []string{fmt.Sprintf("10.5.%d.1", n), fmt.Sprintf("fd00:5:0:%d::1", n)}
}

// newHosts returns hosts 1 and 2, joined by an underlay of both families, with each other as peers, and applied.
func newHosts(t *testing.T, kind backend.Type, options string) (a, b *host) {
	t.Helper()
	a, b = newStrangers(t, kind, options)
	exchange(a, b)
	return a, b
}

// newStrangers returns hosts 1 and 2, joined by an underlay of both families. They have not sent each other a packet.
func newStrangers(t *testing.T, kind backend.Type, options string) (a, b *host) {
	t.Helper()
	hosts := [2]*host{}
	joints := [2]nstest.Joint{}
	for i := range hosts {
		h := &host{t: t, kind: kind, n: i + 1, ns: nstest.New(t), options: options, dir: t.TempDir()}
		h.ns.Sh(fmt.Sprintf(`ip link add br0 type bridge; ip link set br0 up
ip addr add 10.5.%[1]d.1/24 dev br0; ip addr add fd00:5:0:%[1]d::1/64 dev br0`, h.n))
		joints[i] = nstest.Joint{NS: h.ns, Link: "eth0", Addrs: []string{
			fmt.Sprintf("192.0.2.%d/24", h.n), fmt.Sprintf("2001:db8::%d/64", h.n)}}
		hosts[i] = h
	}
	nstest.Join(joints[0], joints[1])
	for _, h := range hosts {
		h.ns.Settle()
		h.renew()
	}
	return hosts[0], hosts[1]
}

// exchange makes both hosts apply each other as a peer.
func exchange(a, b *host) {
	a.t.Helper()
	for _, side := range []struct{ us, them *host }{{a, b}, {b, a}} {
		side.us.state = side.us.newState(side.them.asPeer())
	}
	a.apply()
	b.apply()
}

func (h *host) underlay() backend.Underlay {
	if h.at != nil {
		return *h.at
	}
	return backend.Underlay{Interface: "eth0", MTU: 1500, Addrs: []netip.Addr{
		netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", h.n)), netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", h.n))}}
}

func (h *host) advertise() (adv backend.Advertisement, err error) {
	h.ns.Do(func() { adv, err = h.backend.Advertise(h.underlay()) })
	return adv, err
}

func (h *host) mustAdvertise() backend.Advertisement {
	h.t.Helper()
	adv, err := h.advertise()
	if err != nil {
		h.t.Fatal(err)
	}
	return adv
}

func (h *host) newState(peers ...backend.Peer) backend.State {
	h.t.Helper()
	return backend.State{Subnets: subnets(h.n), MTU: h.mustAdvertise().MTU, Underlay: h.underlay(), Peers: peers}
}

func (h *host) asPeer() backend.Peer {
	h.t.Helper()
	return backend.Peer{Node: fmt.Sprint("node-", h.n), Subnets: subnets(h.n), PublicIPs: h.underlay().Addrs,
		Backend: Name, Attributes: h.mustAdvertise().Attributes}
}

// link returns the name of the host's device. No other host has it at the same time, not even one of another process,
// because the sockets of all namespaces are in one directory.
func (h *host) link() string { return fmt.Sprintf("leno-%x-%x", os.Getpid(), h.ns.Fd()) }

func (h *host) config() backend.Config {
	return config(h.link(), h.dir, h.options)
}

func config(link, dir, options string) backend.Config {
	return backend.Config{Network: link, Link: link, DataDir: dir, Pools: pools(),
		Options: json.RawMessage(options), Logger: hclog.NewNullLogger()}
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
	made, err := h.kind.New(h.config())
	if err != nil {
		h.t.Fatal(err)
	}
	h.backend = made.(*Backend)
	h.t.Cleanup(func() {
		if err := made.Close(); err != nil {
			h.t.Error(err)
		}
	})
}

func (h *host) tryApply() (r backend.Report, err error) {
	h.ns.Do(func() { r, err = h.backend.Apply(h.t.Context(), h.state) })
	return r, err
}

// apply makes the host agree with its state, and checks that a second Apply changes nothing.
func (h *host) apply() backend.Report {
	h.t.Helper()
	report, err := h.tryApply()
	if err != nil {
		h.t.Fatalf("apply: %v", err)
	}
	again, err := h.tryApply()
	if err != nil || again.Writes != 0 || len(again.Repaired) != 0 {
		h.t.Fatalf("second apply: %+v, %v", again, err)
	}
	return report
}

// ping sends echo requests from one host's containers to the other's until one is answered.
func (h *host) ping(to *host) {
	h.t.Helper()
	for i, dst := range inner(to.n) {
		if out, err := h.ns.Try(fmt.Sprintf("ping -n -c 1 -i 0.1 -w 60 -I %s %s", inner(h.n)[i], dst)); err != nil {
			h.t.Fatalf("ping: %v\n%s\n%s\n%s", err, out, h.describe(), to.describe())
		}
	}
}

// describe returns what tells why packets of the host are lost.
func (h *host) describe() string {
	out, err := h.ns.Try(fmt.Sprintf(`wg show %s; ip -s link; ip route; ip neigh; grep ^Udp: /proc/net/snmp`, h.link()))
	return fmt.Sprintf("host %d: %v\n%s", h.n, err, out)
}

// ping4 is ping for IPv4 alone.
func (h *host) ping4(to *host) {
	h.t.Helper()
	if out, err := h.ns.Try(fmt.Sprintf("ping -n -c 1 -i 0.1 -w 60 -I %s %s", inner(h.n)[0], inner(to.n)[0])); err != nil {
		h.t.Errorf("%v\n%s", err, out)
	}
}

// pingFirst sends echo requests from one host's containers to the other's until one is answered, and checks that this is
// the first one.
func (h *host) pingFirst(to *host) {
	h.t.Helper()
	out, err := h.ns.Try(fmt.Sprintf("ping -n -c 1 -i 0.1 -w 60 -I %s %s", inner(h.n)[0], inner(to.n)[0]))
	if err != nil || !strings.Contains(out, "icmp_seq=1 ") {
		h.t.Errorf("%v\n%s", err, out)
	}
}

// silent checks that echo requests are not answered.
func (h *host) silent(to *host) {
	h.t.Helper()
	for i, dst := range inner(to.n) {
		if out, err := h.ns.Try(fmt.Sprintf("ping -n -c 2 -i 0.1 -W 0.3 -I %s %s", inner(h.n)[i], dst)); err == nil {
			h.t.Fatalf("answered\n%s", out)
		}
	}
}

func mustContain(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("lacks %q:\n%s", part, text)
		}
	}
}

// served is the input of a separate process of this binary.
type served struct {
	Link, Dir string
	State     backend.State
}

func TestMain(m *testing.M) {
	served, err := nstest.Serve(applyState)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if !served {
		nstest.RunMoreAtOnce()
		// Each device in the process has more than 30 MiB of buffers, and needs three times as much under the race
		// detector. With the default of 100, devices that tests have closed take more memory than many machines have.
		debug.SetGCPercent(20)
		goleak.VerifyTestMain(m)
	}
}

// applyState runs in a separate process of this binary; see nstest.Serve.
func applyState(encoded string) error {
	var s served
	if err := json.Unmarshal([]byte(encoded), &s); err != nil {
		return err
	}
	b, err := newType(true).New(config(s.Link, s.Dir, ""))
	if err != nil {
		return err
	}
	_, err = b.Apply(context.Background(), s.State)
	return err
}

// start runs the host's backend in a separate process, and returns a function that kills it. The process leaves its
// socket.
func (h *host) start() (kill func()) {
	h.t.Helper()
	h.t.Cleanup(func() { _ = os.Remove(filepath.Join(socketDir, h.link()+".sock")) })
	encoded, err := json.Marshal(served{h.link(), h.dir, h.state})
	if err != nil {
		h.t.Fatal(err)
	}
	nstest.AwaitForks() // the host's backend in this process was closed
	return h.ns.Start(string(encoded))
}
