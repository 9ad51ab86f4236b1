package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// WatchFilter selects the devices and destinations to watch. Run's goroutine calls the functions,
// which must return quickly.
type WatchFilter struct {
	// Own reports whether a device is ours. Its link, permanent neighbours and forwarding entries
	// are watched.
	Own func(link string) bool
	// Used reports whether another device carries the underlay. Only its link is watched.
	Used func(link string) bool
	// Reaches reports whether a prefix contains an address that packets to other hosts go to. All
	// routes to such prefixes are watched, of any protocol.
	Reaches func(netip.Prefix) bool
}

// Watch signals that something a backend or the choice of the underlay depends on may have changed.
// In addition to the filter's devices and destinations, it watches routes with our protocol,
// default routes, the rules that choose among tables, every IPv4 address, every IPv6 address of more
// than link scope, and whether the host forwards packets. The link state is included because a link that goes down, or
// loses its last address, loses its IPv4 routes without an announcement.
//
// Our own writes are signalled like any others: an Apply that wrote is followed by one that writes
// nothing, after which no signal comes.
type Watch struct {
	filter  WatchFilter
	socket  *nl.NetlinkSocket
	changed chan struct{}

	names map[int]string // of all devices, by ifindex
}

// OpenWatch subscribes in the calling thread's network namespace. Every change after it returns is
// signalled.
func OpenWatch(filter WatchFilter) (*Watch, error) {
	socket, err := Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return nil, fmt.Errorf("watch the kernel: %w", err)
	}
	// The default buffer holds about 250 messages. One link with many routes that goes down sends
	// thousands.
	if socket.SetReceiveBufferSize(receiveBuffer, true) != nil {
		_ = socket.SetReceiveBufferSize(receiveBuffer, false) // best effort without CAP_NET_ADMIN
	}
	return &Watch{filter: filter, socket: socket, changed: make(chan struct{}, 1), names: map[int]string{}}, nil
}

// Changed returns the channel that receives one value for any number of changes since the last
// value was received. It is never closed.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Run reads the kernel's messages until the context ends, then closes the watch and returns nil. It
// must be called only once. Lost messages count as a change.
func (w *Watch) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, w.socket.Close) // makes Receive return
	defer func() {
		if stop() {
			w.socket.Close()
		}
	}()
	// Requested here and not in OpenWatch, because the answer would fill the buffer.
	if err := w.askForLinks(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("watch the kernel: %w", err)
	}
	lossy := false
	for {
		messages, from, err := w.socket.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			// Messages are lost from here on until the buffer has been read empty, and the kernel
			// reports it only once (NETLINK_S_CONGESTED). So the end of the loss is what counts.
			lossy = true
			w.tell()
			continue
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return fmt.Errorf("watch the kernel: %w", err)
		case from.Pid != nl.PidKernel:
			continue
		}
		for _, m := range messages {
			if w.matters(m) {
				w.tell()
			}
		}
		if lossy && w.drained() {
			lossy = false
			if err := w.askForLinks(); err != nil && ctx.Err() == nil {
				return fmt.Errorf("watch the kernel: %w", err)
			}
			w.tell()
		}
	}
}

// drained reports whether no message is waiting.
func (w *Watch) drained() bool {
	fds := []unix.PollFd{{Fd: int32(w.socket.GetFd()), Events: unix.POLLIN}}
	_, err := unix.Poll(fds, 0)
	return err == nil && fds[0].Revents&unix.POLLIN == 0
}

func (w *Watch) tell() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// askForLinks makes the kernel send all devices into the stream, to learn their names.
func (w *Watch) askForLinks() error {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	return w.socket.Send(req)
}

func (w *Watch) matters(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return w.linkMatters(m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return addressMatters(m.Data)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return w.routeMatters(m)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return true
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return w.neighbourMatters(m)
	case unix.RTM_NEWNETCONF:
		return w.forwardingMatters(m.Data)
	}
	return false
}

// Attributes of RTM_NEWNETCONF (linux/netconf.h).
const (
	netconfIndex      = 1
	netconfForwarding = 2
	netconfAll        = -1 // as index: the whole host
)

// forwardingMatters returns true for forwarding of the host as a whole and of each watched device.
func (w *Watch) forwardingMatters(data []byte) bool {
	const header = 4 // struct netconfmsg, padded
	if len(data) < header {
		return false
	}
	attrs, err := nl.ParseRouteAttr(data[header:])
	if err != nil {
		return false
	}
	index, told := int32(0), false
	for _, a := range attrs {
		switch {
		case len(a.Value) < 4:
		case a.Attr.Type == netconfIndex:
			index = int32(binary.NativeEndian.Uint32(a.Value))
		case a.Attr.Type == netconfForwarding:
			told = true
		}
	}
	return told && (index == netconfAll || w.linkNamed(w.names[int(index)]))
}

func (w *Watch) linkMatters(m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return false
	}
	if m.Data[0] != unix.AF_UNSPEC {
		return false // sent by the bridge about its ports
	}
	info := nl.DeserializeIfInfomsg(m.Data)
	name := unix.ByteSliceToString(attribute(m.Data[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME))
	before := w.names[int(info.Index)]
	if m.Header.Type == unix.RTM_DELLINK {
		delete(w.names, int(info.Index))
	} else {
		w.names[int(info.Index)] = name
	}
	if m.Header.Flags&unix.NLM_F_MULTI != 0 {
		return false // an answer to askForLinks
	}
	return w.linkNamed(name) || before != name && w.linkNamed(before)
}

func (w *Watch) linkNamed(name string) bool {
	return name != "" && (w.filter.Own(name) || w.filter.Used(name))
}

// attribute returns the value of an attribute, nil if there is none.
func attribute(attrs []byte, kind uint16) []byte {
	parsed, _ := nl.ParseRouteAttr(attrs) // none after an error
	for _, a := range parsed {
		if a.Attr.Type == kind {
			return a.Value
		}
	}
	return nil
}

// addressMatters ignores IPv6 addresses of link scope, which come and go with every container's veth.
func addressMatters(data []byte) bool {
	const family, scope = 0, 3 // in struct ifaddrmsg
	return len(data) >= unix.SizeofIfAddrmsg && (data[family] == unix.AF_INET || data[scope] < unix.RT_SCOPE_LINK)
}

// routeMatters ignores the local table, whose routes come and go with addresses. When one route
// replaces another, the kernel announces only the new one. If a person added it, the old one may
// have been ours; daemons replace only their own.
func (w *Watch) routeMatters(m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofRtMsg {
		return false
	}
	route := nl.DeserializeRtMsg(m.Data)
	switch {
	case route.Flags&unix.RTM_F_CLONED != 0, route.Table == unix.RT_TABLE_LOCAL:
		return false
	case route.Protocol == Protocol, route.Dst_len == 0:
		return true
	case m.Header.Flags&unix.NLM_F_REPLACE != 0 && slices.Contains(byHand, int(route.Protocol)):
		return true
	}
	dst, ok := netip.AddrFromSlice(attribute(m.Data[unix.SizeofRtMsg:], unix.RTA_DST))
	return ok && w.filter.Reaches != nil && w.filter.Reaches(netip.PrefixFrom(dst, int(route.Dst_len)))
}

// byHand lists the protocols of routes that people and start scripts make.
var byHand = []int{unix.RTPROT_BOOT, unix.RTPROT_STATIC}

// neighbourMatters ignores the intermediate states of resolution. The state it ends in may belong
// to another program's entry in the place of ours. When an operator deletes a permanent entry, the
// kernel announces it as a change to failed.
func (w *Watch) neighbourMatters(m syscall.NetlinkMessage) bool {
	const ifindex, state = 4, 8 // in struct ndmsg
	if len(m.Data) < unix.SizeofNdMsg {
		return false
	}
	name := w.names[int(binary.NativeEndian.Uint32(m.Data[ifindex:]))]
	if name == "" || !w.filter.Own(name) {
		return false
	}
	return m.Header.Type == unix.RTM_DELNEIGH ||
		binary.NativeEndian.Uint16(m.Data[state:])&(netlink.NUD_INCOMPLETE|netlink.NUD_DELAY|netlink.NUD_PROBE) == 0
}
