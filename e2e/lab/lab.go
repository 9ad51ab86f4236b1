// Package lab lays out hosts and containers as network namespaces and runs the
// real programs in them: Consul, the leno agent, ping, iperf3. Tests and the
// demo share it, so it knows nothing of testing. It looks at leno from outside
// only: its binary, its files and its HTTP API.
//
//	switch    bridge, 192.0.2.254/24            the network between hosts
//	consul    eth0 192.0.2.1/24                 one Consul server; of several, consul-1 .1, consul-2 .2 and so on
//	host-a    eth0 192.0.2.11/24  br0 ─ veth0   default route to the switch
//	host-b    eth0 192.0.2.12/24  …
//	host-a-default   eth0, out of the host's subnet: a container
//
// Every one of them is a namespace of its own named leno-<id>-<role>, and
// nothing is put into the namespace the lab is called from, except that the kernel's
// limit of neighbours is raised, which all namespaces share. IPv6 is there too,
// fd00:c0:2::1, ::11, ::12 and so on.
package lab

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/e2e/owned"
)

// Options says what to lay out. The zero value is three hosts and a Consul.
type Options struct {
	// Name begins the lab's id. Default "t", for a test, which waits until few enough
	// labs of tests are up. An id is a name and six random digits, so that labs run
	// side by side.
	Name string
	// Hosts is how many, 1 to 80, named host-a to host-z, host-aa and so on.
	// Default 3.
	Hosts int
	// MTU of the network between hosts, bytes. Default 1500.
	MTU int
	// Leno is the path of the binary; without one agents cannot be started. Agent is
	// the one that the first host runs as its agent. Default: Leno.
	Leno, Agent string
	// Consul is the path of the binary. Default: as FindConsul.
	Consul string
	// NoConsul leaves Consul out.
	NoConsul bool
	// Servers is how many Consul servers there are, 1 to 9. Default 1.
	Servers int
	// ConsulConfig is a further configuration file for the Consul servers, JSON,
	// ConsulClientConfig one for the client agents on hosts.
	ConsulConfig, ConsulClientConfig string
	// Log gets one line a step. Default: nowhere. Every single command is in
	// the file lab.log in the lab's directory.
	Log io.Writer
	// Detach lets what was started live on when this process ends, for a lab
	// that is to be looked at. Otherwise the kernel ends it with us.
	Detach bool
}

// Lab is what was laid out.
type Lab struct {
	ID      string // in the name of every namespace
	Dir     string // files of all programs, removed by Close
	Hosts   []*Host
	Consul  *Consul   // the first server, nil with NoConsul
	Servers []*Consul // all of them
	Switch  *Namespace

	opts  Options
	turn  io.Closer // nil without one
	owned *owned.Dir
	file  *os.File // lab.log
	wires int      // cables between hosts there ever were

	mu         sync.Mutex
	namespaces []*Namespace
	processes  []*Process
	logs       map[string]int // how many files there are of a name
}

// The network between hosts. Addresses count up alike in both families.
var underlays = [...]struct{ prefix, gateway netip.Prefix }{
	{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.0.2.254/24")},
	{netip.MustParsePrefix("fd00:c0:2::/64"), netip.MustParsePrefix("fd00:c0:2::fe/64")},
}

const maxHosts, maxServers = 80, 9

// testName begins the ids of labs of tests.
const testName = "t"

// New lays the lab out and returns when Consul has a leader. It needs root.
// When it fails it takes back what stood already.
func New(ctx context.Context, o Options) (_ *Lab, err error) {
	if o.Name == "" {
		o.Name = testName
	}
	if o.Hosts == 0 {
		o.Hosts = 3
	}
	if o.Hosts < 1 || o.Hosts > maxHosts {
		return nil, fmt.Errorf("a lab has 1 to %d hosts, not %d", maxHosts, o.Hosts)
	}
	if o.Servers == 0 {
		o.Servers = 1
	}
	if o.Servers < 1 || o.Servers > maxServers {
		return nil, fmt.Errorf("a lab has 1 to %d Consul servers, not %d", maxServers, o.Servers)
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Consul == "" && !o.NoConsul {
		if o.Consul, err = FindConsul(); err != nil {
			return nil, err
		}
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces need root")
	}

	if err := raiseNeighbours(); err != nil {
		return nil, err
	}
	l := &Lab{ID: o.Name + randomDigits(), opts: o, logs: map[string]int{}}
	l.Dir = directory(l.ID)
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if o.Name == testName {
		if l.turn, err = turn(ctx); err != nil {
			return nil, err
		}
	}
	if l.owned, err = owned.Make(l.Dir); err != nil {
		return nil, err
	}
	if l.file, err = os.Create(filepath.Join(l.Dir, "lab.log")); err != nil {
		return nil, err
	}
	if err := l.layOut(ctx); err != nil {
		return nil, fmt.Errorf("lay out lab %s: %w", l.ID, err)
	}
	if err := StartAll(ctx, l.Servers); err != nil {
		return nil, err
	}
	if o.Detach {
		return l, l.owned.Keep()
	}
	return l, nil
}

// mostNeighbours is the limit of ARP and of neighbour discovery entries of the whole
// kernel. By default it is 1,024, which a few labs side by side exceed; packets are lost
// then.
const mostNeighbours = 1 << 16

// raiseNeighbours raises the limit. Only the first network namespace of a machine has it.
func raiseNeighbours() error {
	for _, family := range []string{"ipv4", "ipv6"} {
		path := "/proc/sys/net/" + family + "/neigh/default/gc_thresh3"
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if now, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && now >= mostNeighbours {
			continue
		}
		for i, limit := range []int{mostNeighbours / 4, mostNeighbours / 2, mostNeighbours} {
			if err := os.WriteFile(strings.TrimSuffix(path, "3")+strconv.Itoa(i+1), []byte(strconv.Itoa(limit)), 0o644); err != nil {
				return fmt.Errorf("raise the kernel's limit of neighbours: %w", err)
			}
		}
	}
	return nil
}

func (l *Lab) layOut(ctx context.Context) (err error) {
	if l.Switch, err = l.namespace(ctx, "switch"); err != nil {
		return err
	}
	lines := []string{
		"link set lo up",
		fmt.Sprintf("link add br0 mtu %d type bridge mcast_snooping 0", l.opts.MTU),
		"link set br0 up",
	}
	for _, u := range underlays {
		lines = append(lines, addressLine(u.gateway, "br0"))
	}
	if err := l.Switch.ip(ctx, lines...); err != nil {
		return err
	}
	l.step("switch: a bridge, %s and %s, MTU %d", underlays[0].prefix, underlays[1].prefix, l.opts.MTU)

	if !l.opts.NoConsul {
		for i := range l.opts.Servers {
			if err := l.addServer(ctx, i); err != nil {
				return err
			}
		}
		l.Consul = l.Servers[0]
	}
	for i := range l.opts.Hosts {
		name := hostName(i)
		ns, err := l.namespace(ctx, name)
		if err != nil {
			return err
		}
		if err := l.connect(ctx, ns, name, hostAddrs(i)); err != nil {
			return err
		}
		for _, knob := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			if err := ns.sysctl(knob, "1"); err != nil {
				return err
			}
		}
		h := newHost(l, ns, name, hostAddrs(i))
		if err := os.MkdirAll(h.Dir, 0o755); err != nil {
			return err
		}
		l.Hosts = append(l.Hosts, h)
		l.step("%s: namespace %s, eth0 %s and %s", name, ns.Name, h.Addrs[0], h.Addrs[1])
	}
	return nil
}

func (l *Lab) addServer(ctx context.Context, i int) error {
	name := "consul"
	if l.opts.Servers > 1 {
		name = fmt.Sprintf("consul-%d", i+1)
	}
	ns, err := l.namespace(ctx, name)
	if err != nil {
		return err
	}
	if err := l.connect(ctx, ns, name, serverAddrs(i)); err != nil {
		return err
	}
	server, err := newConsulServer(l, ns, name, i)
	if err != nil {
		return err
	}
	l.Servers = append(l.Servers, server)
	l.step("%s: namespace %s, %s", name, ns.Name, server.Addr)
	return nil
}

// connect gives a namespace an eth0 on the switch, with one address a family.
func (l *Lab) connect(ctx context.Context, ns *Namespace, port string, addrs []netip.Addr) error {
	err := l.Switch.ip(ctx,
		fmt.Sprintf("link add %s mtu %d type veth peer name eth0 mtu %d netns %s", port, l.opts.MTU, l.opts.MTU, ns.Name),
		fmt.Sprintf("link set %s master br0 up", port))
	if err != nil {
		return err
	}
	lines := []string{"link set lo up", "link set eth0 up"}
	for i, a := range addrs {
		lines = append(lines, addressLine(netip.PrefixFrom(a, underlays[i].prefix.Bits()), "eth0"))
	}
	for _, u := range underlays {
		lines = append(lines, fmt.Sprintf("route add default via %s dev eth0", u.gateway.Addr()))
	}
	return ns.ip(ctx, lines...)
}

func addressLine(p netip.Prefix, dev string) string {
	return fmt.Sprintf("addr add %s dev %s", p, dev)
}

// unplug takes the wire of a host or server off the switch: it loses packets
// both ways and notices nothing else. plug puts it back.
func (l *Lab) unplug(ctx context.Context, name string) error {
	l.step("%s: cut off", name)
	return l.Switch.ip(ctx, fmt.Sprintf("link set %s nomaster", name))
}

func (l *Lab) plug(ctx context.Context, name string) error {
	l.step("%s: connected again", name)
	return l.Switch.ip(ctx, fmt.Sprintf("link set %s master br0", name))
}

// hostName is host-a for the first, host-aa for the 27th.
func hostName(i int) string {
	letters := string(rune('a' + i%26))
	if i >= 26 {
		letters = string(rune('a'+i/26-1)) + letters
	}
	return "host-" + letters
}

func serverAddrs(i int) []netip.Addr { return addrs(1 + i) }

// hostAddrs are 192.0.2.11 and fd00:c0:2::11 for the first host: the same
// digits in both, though they are hexadecimal in the second.
func hostAddrs(i int) []netip.Addr { return addrs(11 + i) }

func addrs(number int) []netip.Addr {
	v4, v6 := underlays[0].prefix.Addr().As4(), underlays[1].prefix.Addr().As16()
	v4[3] = byte(number)
	v6[15] = byte(number/10<<4 | number%10)
	return []netip.Addr{netip.AddrFrom4(v4), netip.AddrFrom16(v6)}
}

// AddNamespace makes one more, with nothing in it, for programs that give it its
// interfaces: container runtimes.
func (l *Lab) AddNamespace(ctx context.Context, role string) (*Namespace, error) {
	n, err := l.namespace(ctx, role)
	if err == nil {
		l.step("%s: namespace %s", role, n.Name)
	}
	return n, err
}

// Path is the namespace as a file.
func (n *Namespace) Path() string { return filepath.Join(namespaceDir, n.Name) }

// Host finds a host by its name, "host-a".
func (l *Lab) Host(name string) *Host {
	i := slices.IndexFunc(l.Hosts, func(h *Host) bool { return h.Name == name })
	if i < 0 {
		return nil
	}
	return l.Hosts[i]
}

// Close ends every process, removes every namespace and the directory. It may
// be repeated, and cleans up after a New that stopped half-way.
func (l *Lab) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	l.mu.Lock()
	processes, namespaces := l.processes, l.namespaces
	l.processes, l.namespaces = nil, nil
	l.mu.Unlock()

	var errs []error
	for _, p := range slices.Backward(processes) {
		errs = append(errs, p.Kill())
	}
	for _, ns := range namespaces {
		ns.close()
	}
	errs = append(errs, Teardown(ctx, l.ID))
	if l.file != nil {
		errs = append(errs, l.file.Close())
		l.file = nil
	}
	errs = append(errs, l.owned.Close())
	if l.turn != nil {
		errs = append(errs, l.turn.Close())
		l.turn = nil
	}
	return errors.Join(errs...)
}

// step tells the reader what was done.
func (l *Lab) step(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	l.note("# " + line)
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintln(l.opts.Log, line)
}

// note adds a line to lab.log.
func (l *Lab) note(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintln(l.file, line)
}

func randomDigits() string {
	b := make([]byte, 3)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
