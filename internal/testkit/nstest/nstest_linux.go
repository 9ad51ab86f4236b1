// Package nstest gives each test its own network namespaces. The namespaces have no name, so that
// nothing is left behind when a test is killed: each disappears with the last descriptor, socket,
// process or device that uses it.
package nstest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/internal/testkit/machine"
)

// NS is a network namespace with its loopback device up.
type NS struct {
	t   testing.TB
	fd  int
	dir func() string // creates it
}

// New creates a namespace that lasts until the test ends. It skips the test unless it runs as root.
func New(t testing.TB) *NS {
	t.Helper()
	machine.Declare()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	ns := &NS{t: t, dir: sync.OnceValue(t.TempDir)}
	inside(t, func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() {
		fd, err := current()
		if err != nil {
			t.Fatalf("open the new namespace: %v", err)
		}
		ns.fd = fd
	})
	t.Cleanup(func() {
		if err := unix.Close(ns.fd); err != nil {
			t.Errorf("close the namespace: %v", err)
		}
	})
	ns.Do(func() {
		// Make addresses usable at once.
		for _, file := range []string{"all", "default", "lo"} {
			path := "/proc/sys/net/ipv6/conf/" + file + "/accept_dad"
			if err := os.WriteFile(path, []byte("0"), 0); err != nil && !os.IsNotExist(err) {
				t.Fatalf("switch duplicate address detection off: %v", err)
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Fatalf("set lo up: %v", err)
		}
	})
	return ns
}

// KeepOrder makes packets stay in order on the devices that are added to the namespace from now on: one processor
// receives all of them. Otherwise a packet is received on the processor of the thread that sends it, and when the thread
// changes processors on a busy machine, the next packet may overtake it. Linux before 6.4 cannot do that.
func (ns *NS) KeepOrder() {
	ns.t.Helper()
	// One for all flows: a TCP connection that sends again after a timeout counts as another flow.
	processor := strconv.FormatUint(1<<(orderly.Add(1)%uint64(min(runtime.NumCPU(), 32))), 16)
	ns.Do(func() {
		err := os.WriteFile("/proc/sys/net/core/rps_default_mask", []byte(processor), 0)
		if err != nil && !os.IsNotExist(err) {
			ns.t.Fatalf("keep the order of packets: %v", err)
		}
	})
}

// orderly counts the namespaces that keep the order of packets, so that their processors take turns.
var orderly atomic.Uint64

// Fd returns the namespace's descriptor, which the NS continues to own.
func (ns *NS) Fd() int { return ns.fd }

// Do runs f with the calling goroutine's thread inside the namespace. Sockets and processes that f
// creates stay there. Calls may nest. Goroutines that f starts run outside the namespace.
func (ns *NS) Do(f func()) {
	ns.t.Helper()
	inside(ns.t, func() error { return unix.Setns(ns.fd, unix.CLONE_NEWNET) }, f)
}

// inside locks the thread, enters a namespace with the given call, runs f and returns to the
// previous namespace, also when f ends the goroutine. A thread that cannot return stays locked and
// so ends with its goroutine.
func inside(t testing.TB, enter func() error, f func()) {
	t.Helper()
	runtime.LockOSThread()
	back, err := current()
	if err != nil {
		t.Fatalf("open the current namespace: %v", err)
	}
	defer func() {
		err := unix.Setns(back, unix.CLONE_NEWNET)
		_ = unix.Close(back) // nothing was written to it
		if err != nil {
			t.Errorf("leave the namespace: %v", err)
			return
		}
		runtime.UnlockOSThread()
	}()
	if err := enter(); err != nil {
		t.Fatalf("enter the namespace: %v", err)
	}
	f()
}

func current() (int, error) {
	return unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// Sh runs shell commands inside the namespace and returns their output when the addresses that they add are usable. The
// test ends when one fails.
func (ns *NS) Sh(script string) string {
	ns.t.Helper()
	out, err := ns.Try(script)
	if err != nil {
		ns.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	if addsAddress.MatchString(script) {
		ns.Settle()
	}
	return out
}

// addsAddress matches scripts that add an IPv6 address or bring up a device that has one.
var addsAddress = regexp.MustCompile(`\baddr(ess)? (add|replace|change)\b[^;\n]*:|\blink set\b.*\bup\b`)

// Try is like Sh, for commands that may fail. For a command that fails it also returns standard
// error. Otherwise standard error is omitted, because ip complains there about named namespaces
// that other programs are just creating.
func (ns *NS) Try(script string) (string, error) {
	ns.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ns.t.Context(), "sh", "-ec", "exec 3>&-\n"+script) // see start
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if strings.Contains(script, "-legacy") {
		// Otherwise iptables-legacy fails while it runs in another namespace.
		cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(ns.dir(), "xtables.lock"))
	}
	err := ns.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return stdout.String() + stderr.String(), err
	}
	return stdout.String(), nil
}

// Joint is one end of an underlay.
type Joint struct {
	NS    *NS
	Link  string
	Addrs []string // with prefix length
}

// Join connects two namespaces by a veth pair with MTU 1500, gives each end its addresses and
// brings both up.
func Join(a, b Joint) {
	a.NS.t.Helper()
	a.NS.Do(func() {
		pair := &netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: a.Link, MTU: 1500},
			PeerName:      b.Link,
			PeerNamespace: netlink.NsFd(b.NS.fd),
			PeerMTU:       1500,
		}
		if err := netlink.LinkAdd(pair); err != nil {
			a.NS.t.Fatalf("join %s and %s: %v", a.Link, b.Link, err)
		}
	})
	for _, end := range []Joint{a, b} {
		end.NS.Do(func() {
			if err := end.setUp(); err != nil {
				end.NS.t.Fatalf("set %s up: %v", end.Link, err)
			}
		})
	}
	a.NS.Settle()
	b.NS.Settle()
}

// setUp gives the device its addresses and brings it up.
func (j Joint) setUp() error {
	link, err := netlink.LinkByName(j.Link)
	if err != nil {
		return err
	}
	for _, text := range j.Addrs {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add %s: %w", text, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// Settle waits until all IPv6 addresses are usable. The kernel makes them usable in the background, even without duplicate
// address detection and with nodad: first the address, then its local route. Before that they cannot be bound or
// reached, and a neighbour that asks for them asks again only after a second. Sh calls it for scripts that add
// addresses. Addresses of devices without a carrier, and those that are being checked for duplicates, do not count.
func (ns *NS) Settle() {
	ns.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for ; ; time.Sleep(time.Millisecond) {
		var waiting string
		var err error
		ns.Do(func() { waiting, err = unsettled() })
		if err == nil && waiting == "" {
			return
		}
		if time.Now().After(deadline) {
			ns.t.Fatalf("the kernel does not take %s into use: %v", waiting, err)
		}
	}
}

// unsettled returns an IPv6 address of the current namespace that is not usable yet, "" for none.
func unsettled() (string, error) {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V6)
	if err != nil {
		return "", err
	}
	local := netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V6, &local, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		return "", err
	}
	for _, addr := range addrs {
		link, err := netlink.LinkByIndex(addr.LinkIndex)
		const ready = unix.IFF_UP | unix.IFF_LOWER_UP
		switch {
		case err != nil || link.Attrs().RawFlags&ready != ready: // the device may be gone by now
		case addr.Flags&unix.IFA_F_TENTATIVE != 0:
			if addr.Flags&unix.IFA_F_DADFAILED == 0 && !detectsDuplicates(link.Attrs().Name) {
				return addr.String(), nil
			}
		case !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Dst != nil && r.Dst.IP.Equal(addr.IP) }):
			return addr.String(), nil
		}
	}
	return "", nil
}

// detectsDuplicates reports whether a device detects duplicate addresses, in which case addresses wait for a second.
func detectsDuplicates(link string) bool {
	for _, name := range []string{"all", link} {
		text, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/accept_dad")
		if err == nil && strings.TrimSpace(string(text)) != "0" {
			return true
		}
	}
	return false
}

// Index returns a device's ifindex.
func (ns *NS) Index(link string) int {
	ns.t.Helper()
	index := 0
	ns.Do(func() {
		l, err := netlink.LinkByName(link)
		if err != nil {
			ns.t.Fatalf("find %s: %v", link, err)
		}
		index = l.Attrs().Index
	})
	return index
}
