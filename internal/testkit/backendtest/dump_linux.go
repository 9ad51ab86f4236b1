package backendtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const peersTitle = "# peers\n"

// dump returns everything that a backend could have changed in the host, as sorted text without
// numbers and times assigned by the kernel.
func (h *host) dump() string {
	h.t.Helper()
	// A program that runs several commands is several times as fast as one for each.
	out := h.ns.Sh(`echo '# links, addresses and neighbours'; printf 'link\naddr\nneigh show nud permanent\n' | ip -o -d -batch -
echo '# routes and rules'; printf 'route show table all\nrule\n' | ip -4 -o -d -batch -
echo '# routes and rules of IPv6'; printf 'route show table all\nrule\n' | ip -6 -o -d -batch -
echo '# fdb'; bridge -o fdb show`)
	var sections []string
	for section := range strings.SplitSeq(strings.TrimPrefix(out, "# "), "\n# ") {
		title, body, _ := strings.Cut(section, "\n")
		var lines []string
		for line := range strings.SplitSeq(body, "\n") {
			if line = scrub(line); line != "" {
				lines = append(lines, line)
			}
		}
		slices.Sort(lines)
		sections = append(sections, "# "+title+"\n"+strings.Join(lines, "\n"))
	}
	if h.suite.Dump != nil {
		sections = append(sections, peersTitle+h.suite.Dump(h.b))
	}
	return strings.Join(sections, "\n")
}

// volatile matches numbers and times assigned by the kernel.
var volatile = regexp.MustCompile(`^\d+: |@if\d+|state (UP|UNKNOWN)|link-netnsid \d+|expires \d+sec|valid_lft.*|` +
	`[a-z]+_timer +[\d.]+`)

// scrub removes a line's volatile parts. It removes the whole line if it is about the link-local
// addresses that the kernel gives devices by itself, or about a route of the local table: the
// kernel derives these from the addresses, for IPv6 a moment later. A TUN's state is unknown until
// its carrier was lost once, and then up.
func scrub(line string) string {
	for _, own := range []string{"fe80:", "ff00::/8", "33:33:", "01:00:5e", " table local "} {
		if strings.Contains(line, own) {
			return ""
		}
	}
	line = volatile.ReplaceAllString(line, "")
	return strings.TrimSpace(strings.ReplaceAll(line, `\`, " "))
}

// events returns the kernel's messages about links, addresses, routes and permanent neighbours
// while f runs. A marker of our own before and after f delimits them.
func (h *host) events(f func()) []string {
	h.t.Helper()
	var socket *nl.NetlinkSocket
	h.ns.Do(func() {
		var err error
		socket, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
			unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
		if err != nil {
			h.t.Fatal(err)
		}
	})
	defer socket.Close()
	if err := socket.SetReceiveTimeout(&unix.Timeval{Sec: 60}); err != nil {
		h.t.Fatal(err)
	}
	marker := func() []string {
		h.ns.Do(func() {
			const lo = 1 // the index of loopback
			route := &netlink.Route{LinkIndex: lo, Dst: &net.IPNet{IP: net.IPv4(203, 0, 113, 113).To4(), Mask: net.CIDRMask(32, 32)},
				Scope: netlink.SCOPE_LINK, Protocol: unix.RTPROT_STATIC}
			if err := errors.Join(netlink.RouteAdd(route), netlink.RouteDel(route)); err != nil {
				h.t.Fatalf("mark the kernel's messages: %v", err)
			}
		})
		var before []string
		for {
			messages, _, err := socket.Receive()
			if err != nil {
				h.t.Fatalf("receive the kernel's messages: %v", err)
			}
			for _, m := range messages {
				if m.Header.Type == unix.RTM_NEWROUTE || m.Header.Type == unix.RTM_DELROUTE {
					if strings.Contains(string(m.Data), "\xcb\x00\x71\x71") {
						if m.Header.Type == unix.RTM_DELROUTE {
							return before
						}
						continue
					}
				}
				const state = 8 // in struct ndmsg
				if (m.Header.Type == unix.RTM_NEWNEIGH || m.Header.Type == unix.RTM_DELNEIGH) &&
					binary.NativeEndian.Uint16(m.Data[state:])&netlink.NUD_PERMANENT == 0 {
					continue // resolving on the underlay
				}
				before = append(before, fmt.Sprintf("type %d: %x", m.Header.Type, m.Data))
			}
		}
	}
	marker()
	f()
	return marker()
}
