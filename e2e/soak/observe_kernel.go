package soak

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routeProtocol marks leno's routes.
const routeProtocol = 108

// underlayDevice is the device of the underlay in the lab's hosts.
const underlayDevice = "eth0"

// devicePrefix is the prefix of the names of leno's devices.
const devicePrefix = "leno-"

// lookTime is how long a look at a kernel may take on a busy machine.
const lookTime = 200 * time.Millisecond

// watchKernel lists the routes and devices of a machine repeatedly, and records every removal that
// the kernel reports, until ctx ends.
func (r *run) watchKernel(ctx context.Context, m *machine) {
	for ctx.Err() == nil {
		if err := r.watchKernelOnce(ctx, m); err != nil && ctx.Err() == nil {
			r.trouble("watch the kernel of %s: %v", m.Name, err)
			_ = sleep(ctx, r.Every)
		}
	}
}

func (r *run) watchKernelOnce(ctx context.Context, m *machine) error {
	routes, links := make(chan netlink.RouteUpdate, 1024), make(chan netlink.LinkUpdate, 1024)
	done := make(chan struct{})
	defer close(done)
	var k *netlink.Handle
	err := m.Do(func() (err error) {
		if k, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		if err = netlink.RouteSubscribe(routes, done); err != nil {
			return err
		}
		return netlink.LinkSubscribe(links, done)
	})
	if k != nil {
		defer k.Close()
	}
	if err != nil {
		return err
	}
	tick := time.NewTicker(r.Every / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-routes:
			if !ok {
				return errors.New("the kernel's messages about routes ended")
			}
			if to, ok := destination(e.Route); ok && e.Type == unix.RTM_DELROUTE {
				r.record(func(h *History) { h.Removals = append(h.Removals, Removal{m.node, r.now(), to}) })
			}
		case e, ok := <-links:
			if !ok {
				return errors.New("the kernel's messages about devices ended")
			}
			if name, ok := deviceOf(e.Attrs().Name); ok && e.Header.Type == unix.RTM_DELLINK {
				r.record(func(h *History) { h.Devices = append(h.Devices, DeviceLoss{m.node, name, r.now()}) })
			}
		case <-tick.C:
			list, err := r.listKernel(k, m)
			if err != nil {
				return err
			}
			if r.now()-list.At > lookTime {
				continue // a fault may have begun in the meantime
			}
			r.record(func(h *History) { h.Routes = append(h.Routes, list) })
		}
	}
}

func (r *run) listKernel(k *netlink.Handle, m *machine) (RouteList, error) {
	list := RouteList{Node: m.node, At: r.now(), MTUs: map[netip.Prefix]int{}, DeviceMTUs: map[string]int{}}
	routes, err := k.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return list, err
	}
	links, err := k.LinkList()
	if err != nil {
		return list, err
	}
	own, mtus := map[int]bool{}, map[int]int{} // by index: leno's devices, and the MTUs of all
	for _, l := range links {
		mtus[l.Attrs().Index] = l.Attrs().MTU
		if l.Attrs().Name == underlayDevice {
			list.UnderlayMTU = l.Attrs().MTU
		}
		if name, ok := deviceOf(l.Attrs().Name); ok {
			list.Devices = append(list.Devices, name)
			list.DeviceMTUs[name] = l.Attrs().MTU
			own[l.Attrs().Index] = true
		}
	}
	for _, route := range routes {
		if to, ok := destination(route); ok {
			list.To = append(list.To, to)
			list.MTUs[to] = cmp.Or(route.MTU, mtus[route.LinkIndex])
			if !own[route.LinkIndex] {
				list.Direct = append(list.Direct, to)
			}
		}
	}
	for _, p := range m.takesPart() {
		for device, folder := range map[string]string{p.name: "", p.name + otherDevice: "b"} {
			if _, err := os.Stat(filepath.Join(m.DataDir(), p.name, folder, "wireguard.key")); err == nil {
				list.Keys = append(list.Keys, device)
			}
		}
	}
	return list, nil
}

// deviceOf returns which of leno's devices has a name, as RouteList.Devices has it.
func deviceOf(link string) (device string, ok bool) {
	for _, n := range allNetworks() {
		if device = strings.TrimPrefix(link, devicePrefix); device == n.name || device == n.name+otherDevice {
			return device, device != link
		}
	}
	return "", false
}

// destination returns the destination of one of leno's routes to a peer. It ignores leno's
// unreachable route for the rest of the network.
func destination(r netlink.Route) (netip.Prefix, bool) {
	if r.Protocol != routeProtocol || r.Type != unix.RTN_UNICAST || r.Dst == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	ones, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones), ok
}
