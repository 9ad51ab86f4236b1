package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/probe"
)

const (
	// tick is the interval between two checks for the file and for the answer to a ping.
	tick = 500 * time.Microsecond
	// routeProtocol marks leno's routes.
	routeProtocol = 108
)

// started describes one start of an agent, up to its subnet file.
type started struct {
	at        time.Time
	took, cpu time.Duration
}

// start runs the agent and waits for the subnet file, which must not exist before.
func start(ctx context.Context, h *lab.Host, network string) (s started, err error) {
	s.at = time.Now()
	if err := h.RestartAgent(); err != nil {
		return s, err
	}
	for {
		_, err := os.Stat(h.SubnetFile(network))
		if err == nil {
			break
		}
		select {
		case <-h.Agent().Done():
			return s, fmt.Errorf("the agent ended: %s", h.Agent().Output())
		case <-ctx.Done():
			return s, fmt.Errorf("wait for the subnet file: %w: %s", ctx.Err(), h.Agent().Output())
		case <-time.After(tick):
		}
	}
	s.took = time.Since(s.at)
	s.cpu, err = probe.CPUTime(h.Agent().Pid())
	return s, err
}

// complete returns an error unless the kernel has a route, a forwarding entry and a neighbour for
// each of n peers.
func complete(h *lab.Host, network string, n int) error {
	return h.Do(func() error {
		k, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer k.Close()
		link, err := k.LinkByName("leno-" + network)
		if err != nil {
			return err
		}
		index := link.Attrs().Index
		routes, err := k.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: routeProtocol, LinkIndex: index},
			netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_OIF)
		if err != nil {
			return err
		}
		fdb, err := k.NeighList(index, unix.AF_BRIDGE)
		if err != nil {
			return err
		}
		neighbours, err := k.NeighList(index, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		permanent := 0
		for _, n := range neighbours {
			if n.State&netlink.NUD_PERMANENT != 0 {
				permanent++
			}
		}
		entries := n
		if link.Type() != "vxlan" {
			entries = 0
		}
		if len(routes) != n || len(fdb) != entries || permanent != entries {
			return fmt.Errorf("%s has %d routes, %d forwarding entries and %d neighbours for %d peers", h.Name, len(routes), len(fdb), permanent, n)
		}
		return nil
	})
}

var applied = regexp.MustCompile(`datapath applied: .*took=(\S+)`)

// applyTook returns the duration of the first pass over the datapath from the agent's log.
func applyTook(p *lab.Process) (time.Duration, error) {
	found := applied.FindStringSubmatch(p.Output())
	if found == nil {
		return 0, errors.New("the agent did not log that it applied the datapath")
	}
	return time.ParseDuration(found[1])
}

// routeEvents reports each new route of leno's on a host until done is closed.
func routeEvents(h *lab.Host, done chan struct{}) (chan netlink.RouteUpdate, error) {
	events := make(chan netlink.RouteUpdate, 64)
	return events, h.Do(func() error { return netlink.RouteSubscribe(events, done) })
}

// awaitRoute returns the time at which the route to a subnet was added.
func awaitRoute(ctx context.Context, events <-chan netlink.RouteUpdate, subnet netip.Prefix) (time.Time, error) {
	for {
		select {
		case e := <-events:
			if e.Type == unix.RTM_NEWROUTE && e.Protocol == routeProtocol && e.Dst != nil && e.Dst.String() == subnet.String() {
				return time.Now(), nil
			}
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for the route to %s: %w", subnet, ctx.Err())
		}
	}
}

// awaitAnswer pings an address from a host until the first answer and returns its time.
func awaitAnswer(ctx context.Context, h *lab.Host, to netip.Addr) (at time.Time, err error) {
	err = h.Do(func() error {
		conn, err := icmp.ListenPacket("ip4:icmp", "0.0.0.0")
		if err != nil {
			return err
		}
		defer conn.Close()
		packet, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: os.Getpid() & 0xffff}}).Marshal(nil)
		if err != nil {
			return err
		}
		buffer := make([]byte, 1500)
		for ctx.Err() == nil {
			// Without a route the packet cannot be sent, or is not answered.
			_, _ = conn.WriteTo(packet, &net.IPAddr{IP: to.AsSlice()})
			if err := conn.SetReadDeadline(time.Now().Add(2 * time.Millisecond)); err != nil {
				return err
			}
			for {
				n, from, err := conn.ReadFrom(buffer)
				if err != nil {
					break // usually the deadline
				}
				if n > 0 && ipv4.ICMPType(buffer[0]) == ipv4.ICMPTypeEchoReply && from.String() == to.String() {
					at = time.Now()
					return nil
				}
			}
		}
		return fmt.Errorf("wait for an answer of %s: %w", to, ctx.Err())
	})
	return at, err
}
