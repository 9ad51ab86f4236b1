// Package lab lays out hosts and containers as network namespaces and runs the real programs in
// them: Consul or etcd, the leno agent, ping, iperf3. Tests and the demo share it, so it does not depend on
// testing. It uses leno only from outside: its binary, its files and its HTTP API.
//
//	switch    bridge, 192.0.2.254/24            the network between hosts
//	consul    eth0 192.0.2.1/24                 the Consul server; with several, consul-1 .1, consul-2 .2 and so on
//	etcd      eth0 192.0.2.1/24                 the same with etcd, instead of Consul
//	host-a    eth0 192.0.2.11/24  br0 ─ veth0   default route to the switch
//	host-b    eth0 192.0.2.12/24  …
//	host-a-default   eth0, from the host's subnet: a container
//
// Each of them is a namespace named leno-<id>-<role>. Nothing is added to the namespace that the
// lab is called from, except that the kernel's limit of neighbours, which all namespaces share, is
// raised. IPv6 is there too: fd00:c0:2::1, ::11, ::12 and so on.
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

	"github.com/lenonet/leno/internal/testkit/machine"
	"github.com/lenonet/leno/internal/testkit/owned"
)

// Options describe what to lay out. The zero value is three hosts and a Consul server.
type Options struct {
	// Name is the first part of the lab's id. Default "t", for a test; such a lab waits until few
	// enough test labs are up. An id is the name and six random digits, so that labs can run side
	// by side.
	Name string
	// Hosts is the number of hosts, 1 to 80, named host-a to host-z, host-aa and so on. Default 3.
	Hosts int
	// NoHosts lays out a lab without hosts, for one of virtual machines (e2e/vm).
	NoHosts bool
	// MTU is the MTU of the network between hosts, in bytes. Default 1500.
	MTU int
	// Leno is the path of the leno binary; without it, no agent can be started. Agent is the binary
	// that the first host runs as its agent. Default: Leno.
	Leno, Agent string
	// Store is the store of the hosts: StoreConsul or StoreEtcd. Default StoreConsul.
	Store string
	// StoreBlock returns the block that selects the store in the configuration of a host. Default: the
	// one of Store.
	StoreBlock func(*Host) string
	// Consul and Etcd are the paths of the stores' binaries. Default: the results of FindConsul and
	// FindEtcd.
	Consul, Etcd string
	// NoConsul lays out a lab without a store.
	NoConsul bool
	// Servers is the number of servers of the store, 1 to 9. Default 1.
	Servers int
	// ConsulConfig is an additional JSON configuration file for the Consul servers,
	// ConsulClientConfig one for the client agents on hosts.
	ConsulConfig, ConsulClientConfig string
	// Log receives one line per step. Default: none. Every single command is in the file lab.log in
	// the lab's directory.
	Log io.Writer
	// Detach lets the programs of the lab survive this process, for a lab that a person wants to
	// explore. Without it the kernel ends them with this process.
	Detach bool
}

// A Lab is a set of hosts and servers of a store that run in namespaces.
type Lab struct {
	ID     string // part of the name of every namespace
	Dir    string // files of all programs, removed by Close
	Hosts  []*Host
	Switch *Namespace

	Store        Store   // the first server of the store, nil with NoConsul
	StoreServers []Store // all of them

	Consul  *Consul   // Store if it is Consul, else nil
	Servers []*Consul // all servers of Consul

	Etcd        *Etcd   // Store if it is etcd, else nil
	EtcdServers []*Etcd // all servers of etcd

	opts  Options
	turn  io.Closer // the lab's place among those of tests, or nil
	owned *owned.Dir
	file  *os.File // lab.log
	wires int      // cables between hosts so far
	ports int      // ports for virtual machines so far

	mu         sync.Mutex
	namespaces []*Namespace
	processes  []*Process
	watchers   []func()       // end what LengthenQueues started
	logs       map[string]int // number of log files by program name
}

// underlays are the prefixes of the network between hosts. Addresses count up alike in both
// families.
var underlays = [...]struct{ prefix, gateway netip.Prefix }{
	{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.0.2.254/24")},
	{netip.MustParsePrefix("fd00:c0:2::/64"), netip.MustParsePrefix("fd00:c0:2::fe/64")},
}

const maxHosts, maxServers = 80, 9

// testName is the first part of the ids of test labs.
const testName = "t"

// New lays out the lab and returns when the store has a leader. It needs root. If it fails, it removes
// what it has created.
func New(ctx context.Context, o Options) (_ *Lab, err error) {
	machine.Declare()
	if o.Name == "" {
		o.Name = testName
	}
	if o.Hosts == 0 && !o.NoHosts {
		o.Hosts = 3
	}
	if o.NoHosts && o.Hosts != 0 {
		return nil, errors.New("a lab has either Hosts or NoHosts")
	}
	if o.Hosts < 0 || o.Hosts > maxHosts || o.Hosts == 0 && !o.NoHosts {
		return nil, fmt.Errorf("a lab has 1 to %d hosts, not %d", maxHosts, o.Hosts)
	}
	if o.Servers == 0 {
		o.Servers = 1
	}
	if o.Servers < 1 || o.Servers > maxServers {
		return nil, fmt.Errorf("a lab has 1 to %d servers of the store, not %d", maxServers, o.Servers)
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if !o.NoConsul {
		if err := o.findStore(); err != nil {
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
	if err := awaitAll(ctx, l.StoreServers); err != nil {
		return nil, err
	}
	if o.Detach {
		return l, l.owned.Keep()
	}
	return l, nil
}

// mostNeighbours is the limit of ARP and neighbour discovery entries of the whole kernel. The
// default, 1,024, is exceeded by a few labs side by side, and packets are lost then.
const mostNeighbours = 1 << 16

// raiseNeighbours raises the limit. Only the first network namespace of a machine has that sysctl.
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
		l.Store = l.StoreServers[0]
		// They elect a leader while the hosts are laid out.
		if err := launchAll(l.StoreServers); err != nil {
			return err
		}
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
	name := l.opts.serverName(i)
	ns, err := l.namespace(ctx, name)
	if err != nil {
		return err
	}
	addrs := serverAddrs(i)
	if err := l.connect(ctx, ns, name, addrs); err != nil {
		return err
	}
	if l.opts.Store == StoreEtcd {
		server := newEtcd(l, ns, name, i)
		l.EtcdServers = append(l.EtcdServers, server)
		l.StoreServers, l.Etcd = append(l.StoreServers, server), l.EtcdServers[0]
	} else {
		server, err := newConsulServer(l, ns, name, i)
		if err != nil {
			return err
		}
		l.Servers = append(l.Servers, server)
		l.StoreServers, l.Consul = append(l.StoreServers, server), l.Servers[0]
	}
	l.step("%s: namespace %s, %s", name, ns.Name, addrs[0])
	return nil
}

// connect gives a namespace an eth0 on the switch, with one address per family.
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

// unplug disconnects a host or server from the switch: it loses packets in both directions and
// notices nothing else. plug connects it again.
func (l *Lab) unplug(ctx context.Context, name string) error {
	l.step("%s: cut off", name)
	return l.Switch.ip(ctx, fmt.Sprintf("link set %s nomaster", name))
}

func (l *Lab) plug(ctx context.Context, name string) error {
	l.step("%s: connected again", name)
	return l.Switch.ip(ctx, fmt.Sprintf("link set %s master br0", name))
}

// hostName returns "host-a" for index 0 and "host-aa" for index 26.
func hostName(i int) string {
	letters := string(rune('a' + i%26))
	if i >= 26 {
		letters = string(rune('a'+i/26-1)) + letters
	}
	return "host-" + letters
}

func serverAddrs(i int) []netip.Addr { return addrs(1 + i) }

// hostAddrs returns 192.0.2.11 and fd00:c0:2::11 for the first host: the same digits in both
// families, although they are hexadecimal in IPv6.
func hostAddrs(i int) []netip.Addr { return addrs(11 + i) }

func addrs(number int) []netip.Addr {
	v4, v6 := underlays[0].prefix.Addr().As4(), underlays[1].prefix.Addr().As16()
	v4[3] = byte(number)
	v6[15] = byte(number/10<<4 | number%10)
	return []netip.Addr{netip.AddrFrom4(v4), netip.AddrFrom16(v6)}
}

// AddNamespace creates one more, empty namespace, for programs that create its interfaces
// themselves, such as container runtimes.
func (l *Lab) AddNamespace(ctx context.Context, role string) (*Namespace, error) {
	n, err := l.namespace(ctx, role)
	if err == nil {
		l.step("%s: namespace %s", role, n.Name)
	}
	return n, err
}

// Path returns the path of the namespace's file.
func (n *Namespace) Path() string { return filepath.Join(namespaceDir, n.Name) }

// Host returns the host with the given name, "host-a".
func (l *Lab) Host(name string) *Host {
	i := slices.IndexFunc(l.Hosts, func(h *Host) bool { return h.Name == name })
	if i < 0 {
		return nil
	}
	return l.Hosts[i]
}

// Close ends every process and removes every namespace and the directory. It may be called again,
// and it cleans up after a New that failed half-way.
func (l *Lab) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	l.mu.Lock()
	processes, namespaces, watchers := l.processes, l.namespaces, l.watchers
	l.processes, l.namespaces, l.watchers = nil, nil, nil
	l.mu.Unlock()

	var errs []error
	for _, e := range l.EtcdServers {
		errs = append(errs, e.closeClient())
	}
	for _, p := range slices.Backward(processes) {
		if os.Getenv("GOCOVERDIR") != "" { // programs write what they have run when they end
			_ = p.StopWithin(20 * time.Second)
		}
		p.Kill()
	}
	for _, stop := range watchers {
		stop()
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

// step reports to the log what was done.
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
