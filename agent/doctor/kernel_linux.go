package doctor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/flannel"
)

// These functions only read, in the network namespace of the calling thread, and need no rights.

// ReadDevice reads the state of the network's device; tun means that its packets come by /dev/net/tun.
func ReadDevice(link string, tun bool) Device {
	d := Device{Wanted: true}
	if tun {
		f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
		if d.TUN = err; err == nil {
			_ = f.Close()
		}
	}
	found, err := netlink.LinkByName(link)
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
		return d
	case err != nil:
		d.Err = fmt.Errorf("find link %s: %w", link, err)
		return d
	}
	a := found.Attrs()
	d.Exists, d.Kind, d.MAC, d.MTU, d.Up = true, found.Type(), a.HardwareAddr.String(), a.MTU, a.RawFlags&unix.IFF_UP != 0
	if d.Kind == "wireguard" {
		d.Key = publicKey(link)
	}
	return d
}

// publicKey returns the public key of a WireGuard device of the kernel, or "" if this process may not read it.
func publicKey(link string) string {
	client, err := wgctrl.New()
	if err != nil {
		return ""
	}
	defer client.Close()
	device, err := client.Device(link)
	if err != nil || device.Type != wgtypes.LinuxKernel {
		return ""
	}
	return device.PublicKey.String()
}

// ReadRoutes returns the routes of other programs to destinations in the pools. own holds this host's subnets.
func ReadRoutes(pools, own []netip.Prefix) ([]Route, error) {
	names, err := linkNames()
	if err != nil {
		return nil, err
	}
	var out []Route
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range list {
			dst, refuses := kernel.ToPrefix(r.Dst), kernel.RejectingType(r)
			isOurs := r.Protocol == kernel.Protocol || strings.HasPrefix(names[r.LinkIndex], backend.LinkPrefix)
			if isOurs || r.Type != unix.RTN_UNICAST && refuses == "" || dst.Bits() <= 0 ||
				!slices.ContainsFunc(pools, dst.Overlaps) {
				continue
			}
			link := names[r.LinkIndex]
			if refuses != "" {
				link = "" // IPv6 names lo
			}
			out = append(out, Route{Dst: dst, Link: link, Refuses: refuses, Gateway: kernel.ToAddr(r.Gw),
				Flannel:   flannel.IsLink(link),
				Connected: r.Protocol == unix.RTPROT_KERNEL,
				Serves:    slices.ContainsFunc(own, func(s netip.Prefix) bool { return registry.Contains(s, dst) })})
		}
	}
	return out, nil
}

func linkNames() (map[int]string, error) {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	return names, nil
}

// ReadOnLinkPrefixes returns the prefixes of the device's addresses.
func ReadOnLinkPrefixes(link string) ([]netip.Prefix, error) {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", link, err)
	}
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", link, err)
	}
	var out []netip.Prefix
	for _, a := range addrs {
		if p := kernel.ToPrefix(a.IPNet); p.Bits() > 0 {
			out = append(out, p.Masked())
		}
	}
	return out, nil
}

// FindRefusal asks the kernel whether its reverse path filter, which only IPv4 has, rejects a packet with that source
// from a device.
func FindRefusal(source, dest netip.Addr, link string) (Refusal, bool) {
	r := Refusal{Source: source, Dest: dest, Link: link}
	if !source.Is4() || !dest.Is4() || link == "" {
		return r, false
	}
	r.Mode = kernel.ReversePathFilter(link)
	if r.Mode == "" || r.Mode == "0" {
		return r, false
	}
	_, err := netlink.RouteGetWithOptions(dest.AsSlice(), &netlink.RouteGetOptions{Iif: link, SrcAddr: source.AsSlice()})
	// The kernel answers EXDEV, and since Linux 6.14 EINVAL.
	if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EINVAL) {
		return r, false
	}
	if back, err := netlink.RouteGetWithOptions(source.AsSlice(),
		&netlink.RouteGetOptions{OifIndex: underlay.VRF(link)}); err == nil && len(back) > 0 {
		if l, err := netlink.LinkByIndex(back[0].LinkIndex); err == nil {
			r.ReturnLink = l.Attrs().Name
		}
	}
	return r, true
}

// MissingCapabilities returns those of CAP_NET_ADMIN and CAP_NET_RAW that the process lacks.
func MissingCapabilities() ([]string, error) {
	var missing []string
	for _, c := range []struct {
		bit  uint
		name string
	}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_NET_RAW, "CAP_NET_RAW"}} {
		if has, err := HasCapability(c.bit); err != nil {
			return nil, err
		} else if !has {
			missing = append(missing, c.name)
		}
	}
	return missing, nil
}

// HasCapability reports whether the process has a capability, one of the first 32.
func HasCapability(bit uint) (bool, error) {
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return false, fmt.Errorf("read capabilities: %w", err)
	}
	return data[0].Effective&(1<<bit) != 0, nil
}

// AddKernelFacts adds what this host has of the network: its device, routes of others into its pools, and its underlay.
func (n *Network) AddKernelFacts(device, tun bool, plan registry.Plan) {
	if device {
		n.Device = ReadDevice(n.Link, tun)
	}
	routes, err := ReadRoutes(n.Pools, n.Subnets)
	first, last := plan.Range()
	n.Routes, n.RoutesErr = slices.DeleteFunc(routes, func(r Route) bool {
		from, to, ok := plan.Overlapping(r.Dst)
		return !ok || to < first || from > last // no host is given such an address
	}), err
	if n.Underlay.Interface != "" {
		n.Underlay.OnLink, _ = ReadOnLinkPrefixes(n.Underlay.Interface) // without it less is known
	}
}

// AddRefusals asks the kernel which of the peer's packets it would reject. links are the network's devices by which
// those packets arrive.
func (p *Peer) AddRefusals(n Network, links []string) {
	add := func(source, dest netip.Addr, link string, perhaps bool) {
		if r, refused := FindRefusal(source, dest, link); refused {
			r.IfAsymmetric = perhaps
			p.Refusals = append(p.Refusals, r)
		}
	}
	if n.Port > 0 {
		add(p.Public, n.Underlay.Own[0], n.Underlay.Interface, false)
	}
	for _, theirs := range p.Subnets {
		for _, own := range n.Subnets {
			if own.Addr().Is4() != theirs.Addr().Is4() {
				continue
			}
			for _, link := range links {
				add(theirs.Addr(), own.Addr(), link, len(links) > 1)
			}
		}
	}
}

// AddOtherRefusals asks the kernel by which other devices than the underlay's it would reject the peer's packets.
func (p *Peer) AddOtherRefusals(n Network) {
	var all Refusal
	var names []string
	links, err := net.Interfaces()
	if err != nil || len(n.Underlay.Own) == 0 {
		return // less is known
	}
	for _, l := range links {
		if l.Flags&net.FlagRunning == 0 || l.Flags&net.FlagLoopback != 0 || l.Name == n.Underlay.Interface ||
			strings.HasPrefix(l.Name, backend.LinkPrefix) {
			continue
		}
		if r, refused := FindRefusal(p.Public, n.Underlay.Own[0], l.Name); refused && r.Mode == "1" {
			all, names = r, append(names, l.Name)
		}
	}
	if len(names) > 0 {
		all.OtherLinks, all.Link = true, strings.Join(names, " or ")
		p.Refusals = append(p.Refusals, all)
	}
}

// CountFiltered returns how many packets the reverse path filter of the calling thread's namespace has dropped.
func CountFiltered() (int, error) {
	text, err := os.ReadFile("/proc/thread-self/net/netstat")
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if i := slices.Index(names, "IPReversePathFilter"); i >= 0 && i < len(fields) {
			return strconv.Atoi(fields[i])
		}
		names = fields
	}
	return 0, errors.New("the kernel does not count what its reverse path filter drops")
}

// AddDetours asks the kernel which packets to the first peers take another route than leno's. isEncapsulated says that
// packets between hosts are sent to the public addresses.
func (n *Network) AddDetours(isEncapsulated bool, most int) {
	link, err := net.InterfaceByName(n.Underlay.Interface)
	if err != nil {
		return // less is known
	}
	q := kernel.PathQuery{
		Subnets: n.Subnets,
		Underlay: backend.Underlay{
			Interface: link.Name,
			Index:     link.Index,
			Own:       n.Underlay.Own,
			VRF:       underlay.VRF(link.Name),
		},
		Encapsulated: isEncapsulated,
	}
	for _, p := range n.Peers[:min(len(n.Peers), most)] {
		if p.Skipped == "" && p.Public.IsValid() {
			q.Peers = append(q.Peers, backend.Peer{Node: p.Node, Subnets: p.Subnets, PublicIPs: []netip.Addr{p.Public}})
		}
	}
	found, err := kernel.FindDetours(q)
	if err != nil {
		return
	}
	for _, d := range found {
		i := slices.IndexFunc(n.Peers, func(p Peer) bool { return p.Node == d.Node && p.Skipped == "" })
		n.Peers[i].Detour = &d
	}
}

// FindModule returns why the kernel does not know a module; nil if it does or if that cannot be determined.
func FindModule(name string) error {
	if _, err := os.Stat("/sys/module/" + name); err == nil {
		return nil
	}
	var release unix.Utsname
	if err := unix.Uname(&release); err != nil {
		return nil
	}
	dir := "/lib/modules/" + unix.ByteSliceToString(release.Release[:])
	for _, list := range []string{"modules.builtin", "modules.dep"} {
		text, err := os.ReadFile(filepath.Join(dir, list))
		if err != nil || strings.Contains(string(text), "/"+name+".ko") {
			return nil
		}
	}
	return fmt.Errorf("kernel module %s: %w: neither built in nor below %s", name, backend.ErrNoSuchKind, dir)
}
