package trace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/backend/kernel"
)

// container reads what is known of a container with an address. other is the other end of the path.
func (r reader) container(ctx context.Context, addr, other netip.Addr) *Container {
	c := &Container{Address: addr}
	found, err := r.findNamespaces(addr)
	c.Err = err
	if len(found) > 0 {
		c.Namespace, c.Link, c.Port = found[0].path, found[0].link, found[0].port
		c.Process = processOf(c.Namespace)
		for _, o := range found[1:] {
			c.Others = append(c.Others, o.path)
		}
		c.Route = r.containerRoute(c.Namespace, addr, other)
	}
	// This also makes the kernel look for the container.
	if sent, err := probe.Ping(ctx, netip.Addr{}, addr, 0, 2, answerTime); err == nil {
		c.Ping = Sending{What: "2 ICMP echo requests", Sent: sent.Sent, Answered: sent.Answered, Reason: sent.Reason}
	}
	c.Delivery = *r.route(kernel.RouteQuery{Dst: addr})
	switch {
	case c.Port.Master != "":
		c.Bridge = readLink(r.nl, c.Port.Master)
	case c.Port.Name != "" && c.Delivery.Link != c.Port.Name &&
		!slices.ContainsFunc(addresses(r.nl, c.Port.Name), netip.Addr.IsGlobalUnicast):
		c.Bridge = c.Delivery.Device // the port has lost its bridge
	case c.Port.Name != "":
		c.Bridge = c.Port
	default:
		c.Bridge = c.Delivery.Device
	}
	c.Gateway = addresses(r.nl, c.Bridge.Name)
	return c
}

// containerRoute asks for a route in a namespace.
func (r reader) containerRoute(path string, src, dst netip.Addr) Lookup {
	handle, err := openNamespace(path)
	if err != nil {
		return Lookup{Err: err}
	}
	defer handle.Close()
	return *lookUp(handle, kernel.RouteQuery{Dst: dst, Src: src})
}

// A namespace is a network namespace that is connected to this host's, and has a wanted address.
type namespace struct {
	path string
	link Link // with the address
	port Link // this host's end of it
}

// findNamespaces returns the network namespaces with an address on a device that is connected to one of this host's
// namespace. Other namespaces of this machine may have the same address.
func (r reader) findNamespaces(addr netip.Addr) (out []namespace, err error) {
	if has, err := doctor.HasCapability(unix.CAP_SYS_ADMIN); err != nil || !has {
		return nil, errors.New("this process may not look into containers, which takes CAP_SYS_ADMIN")
	}
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	for _, path := range namespacePaths(own) {
		if n, ok := r.matchNamespace(path, int(own.Fd()), addr); ok {
			out = append(out, n)
		}
	}
	return out, nil
}

// namespacePaths returns a path of each network namespace but own: those with a name first.
func namespacePaths(own *os.File) (out []string) {
	seen := map[uint64]bool{}
	add := func(path string) {
		var s unix.Stat_t
		if err := unix.Stat(path, &s); err == nil && !seen[s.Ino] {
			seen[s.Ino] = true
			out = append(out, path)
		}
	}
	var s unix.Stat_t
	if err := unix.Fstat(int(own.Fd()), &s); err == nil {
		seen[s.Ino] = true
	}
	for _, pattern := range []string{"/run/netns/*", "/run/docker/netns/*", "/proc/[0-9]*/ns/net"} {
		paths, _ := filepath.Glob(pattern) // the pattern is right
		for _, path := range paths {
			add(path)
		}
	}
	return out
}

// openNamespace returns a netlink handle in a namespace.
func openNamespace(path string) (*netlink.Handle, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer ns.Close()
	return netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
}

// matchNamespace reports whether a namespace has an address on a device that is connected to the namespace own.
func (r reader) matchNamespace(path string, own int, addr netip.Addr) (namespace, bool) {
	handle, err := openNamespace(path)
	if err != nil {
		return namespace{}, false // it has just ended, or is none of the network
	}
	defer handle.Close()
	list, err := handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return namespace{}, false
	}
	i := slices.IndexFunc(list, func(a netlink.Addr) bool {
		found, ok := netip.AddrFromSlice(a.IP)
		return ok && found.Unmap() == addr
	})
	if i < 0 {
		return namespace{}, false
	}
	l, err := handle.LinkByIndex(list[i].LinkIndex)
	if err != nil {
		return namespace{}, false
	}
	a := l.Attrs()
	if id, err := handle.GetNetNsIdByFd(own); err != nil || a.NetNsID < 0 || id != a.NetNsID {
		return namespace{}, false // its other end is elsewhere
	}
	n := namespace{path: path, link: linkOf(handle, l)}
	if port, err := r.nl.LinkByIndex(a.ParentIndex); err == nil {
		n.port = linkOf(r.nl, port)
	}
	return n, true
}

// processOf returns the name of the process that a path is of, "" for none.
func processOf(path string) string {
	rest, isProcess := strings.CutPrefix(path, "/proc/")
	if !isProcess {
		return ""
	}
	pid, _, _ := strings.Cut(rest, "/")
	text, _ := os.ReadFile("/proc/" + pid + "/comm") // it may have ended
	return strings.TrimSpace(string(text))
}

// answerTime is how long a packet may take to be answered.
const answerTime = time.Second
