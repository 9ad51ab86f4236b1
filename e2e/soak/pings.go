package soak

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

const pingEvery = 200 * time.Millisecond

// A place is the place of a container: a host in a network.
type place struct {
	*machine
	network string
}

// pings are sent from every container to every other one of its network, in each family, all the
// time. If a container's host has another subnet, the container is replaced, as its runtime would
// do.
type pings struct {
	run        *run
	mu         sync.Mutex // held while containers is changed or read by others
	containers map[place]*lab.Container
	streams    []*stream
	sent       int // by the streams that have ended
}

// A stream is one running ping.
type stream struct {
	from, to place
	nodes    [2]string
	addr     netip.Addr
	ping     *lab.PingStream
}

// start adds a container to every place and waits until all of them ping each other.
func (p *pings) start(ctx context.Context) error {
	if err := p.house(ctx); err != nil {
		return err
	}
	return await(ctx, patience, "answers from container to container", func(ctx context.Context) error {
		missing, err := p.connect(ctx)
		if err == nil && missing > 0 {
			err = fmt.Errorf("%d are missing", missing)
		}
		return err
	})
}

// places returns the places of containers: each carrier has one in each permanent network.
func (p *pings) places() (out []place) {
	for _, m := range p.run.machines {
		for _, part := range m.takesPart() {
			if m.carries && part.origin != temporary {
				out = append(out, place{m, part.name})
			}
		}
	}
	return out
}

// part returns the machine's part in the place's network.
func (p place) part() part {
	all := p.takesPart()
	return all[slices.IndexFunc(all, func(x part) bool { return x.name == p.network })]
}

// house adds a container to every place that has none. The lab looks for the subnet file at one
// path only, so a host whose file is elsewhere gets its container later.
func (p *pings) house(ctx context.Context) error {
	for _, at := range p.places() {
		if p.containers[at] != nil || at.part().file != at.SubnetFile(at.network) {
			continue
		}
		c, err := at.AddContainer(ctx, at.network)
		if err != nil {
			return err
		}
		p.mu.Lock()
		p.containers[at] = c
		p.mu.Unlock()
	}
	return nil
}

// containersOf returns the containers of a network.
func (p *pings) containersOf(network string) map[place]*lab.Container {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := maps.Clone(p.containers)
	maps.DeleteFunc(out, func(at place, _ *lab.Container) bool { return at.network != network })
	return out
}

// connect starts the missing pings, each after a first answer, because routes to a new container
// take a moment. It returns the number of pings without an answer.
func (p *pings) connect(ctx context.Context) (missing int, err error) {
	for from, c := range p.containers {
		for to, other := range p.containers {
			for _, addr := range other.Addrs {
				if from == to || from.network != to.network ||
					slices.ContainsFunc(p.streams, func(s *stream) bool { return s.from == from && s.addr == addr }) {
					continue
				}
				result, err := c.Ping(ctx, addr, lab.PingOptions{Timeout: pingEvery})
				if err != nil {
					return missing, err
				}
				if result.Lost() > 0 {
					missing++
					continue
				}
				ping, err := c.StartPing(addr, lab.PingOptions{Interval: pingEvery})
				if err != nil {
					return missing, err
				}
				p.streams = append(p.streams, &stream{from, to, [2]string{from.node, to.node}, addr, ping})
			}
		}
	}
	return missing, nil
}

// watch replaces containers until ctx ends.
func (p *pings) watch(ctx context.Context) {
	for sleep(ctx, pingEvery) == nil {
		if err := p.follow(ctx); err != nil && ctx.Err() == nil {
			p.run.trouble("pings: %v", err)
			_ = sleep(ctx, p.run.Every)
		}
	}
}

// follow removes the containers whose host has another subnet, and adds the missing ones.
func (p *pings) follow(ctx context.Context) error {
	for at, c := range p.containers {
		// A host without IPv6 has no such subnet, and its containers keep their addresses.
		subnets := slices.DeleteFunc(fileSubnets(at.part().file), func(s netip.Prefix) bool { return s.Addr().Is6() })
		if len(subnets) == 0 || slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(c.Addrs[0]) }) {
			continue
		}
		ctx := context.WithoutCancel(ctx) // complete what has begun
		p.run.say("%s has another subnet of network %s, replacing its container", at.node, at.network)
		if err := p.end(ctx, func(s *stream) bool { return s.from == at || s.to == at }); err != nil {
			p.run.trouble("pings: %v", err)
		}
		p.mu.Lock()
		delete(p.containers, at)
		p.mu.Unlock()
		if err := c.Remove(ctx); err != nil {
			return err
		}
	}
	if err := p.house(ctx); err != nil {
		return err
	}
	_, err := p.connect(ctx)
	return err
}

// stop ends all pings.
func (p *pings) stop(ctx context.Context) error {
	return p.end(ctx, func(*stream) bool { return true })
}

// late is how long before the end of a stream a packet must have been sent to count, because an
// answer may still be under way.
const late = time.Second

// end ends some streams and records their losses.
func (p *pings) end(ctx context.Context, which func(*stream) bool) error {
	var errs []error
	p.streams = slices.DeleteFunc(p.streams, func(s *stream) bool {
		if !which(s) {
			return false
		}
		stopped := time.Now()
		result, err := s.ping.Stop(ctx)
		errs = append(errs, err)
		p.sent += result.Sent
		if len(result.MissingAt) != len(result.Missing) {
			errs = append(errs, fmt.Errorf("ping from %s to %s: hardly an answer: %s", s.nodes[0], s.nodes[1], result.Output))
		}
		for _, at := range result.MissingAt {
			if stopped.Sub(at) > late {
				p.run.record(func(h *History) {
					h.Losses = append(h.Losses, Loss{s.from.network, s.nodes[0], s.nodes[1], at.Sub(p.run.start), s.addr.Is6()})
				})
			}
		}
		return true
	})
	return errors.Join(errs...)
}
