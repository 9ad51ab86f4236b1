package soak

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

const pingEvery = 200 * time.Millisecond

// pings go from every container to every other, each family, all the time. A
// container whose host has another subnet now is replaced, as its runtime would.
type pings struct {
	run        *run
	containers map[*machine]*lab.Container
	streams    []*stream

	mu   sync.Mutex
	sent int
}

// stream is one ping that goes on.
type stream struct {
	from, to *machine
	ping     *lab.PingStream
}

// house gives a container to every machine that has none.
func (p *pings) house(ctx context.Context) error {
	var fresh []*machine
	for _, m := range p.run.machines {
		if !m.carries || p.containers[m] != nil {
			continue
		}
		c, err := m.AddContainer(ctx, m.network)
		if err != nil {
			return err
		}
		p.containers[m] = c
		fresh = append(fresh, m)
	}
	return p.connect(ctx, fresh)
}

// connect starts what pings from and to machines with a new container, once an
// answer came: routes to them take a moment.
func (p *pings) connect(ctx context.Context, fresh []*machine) error {
	for from, c := range p.containers {
		for to, other := range p.containers {
			if from == to || !slices.Contains(fresh, from) && !slices.Contains(fresh, to) {
				continue
			}
			for _, addr := range other.Addrs {
				err := lab.WaitFor(ctx, fmt.Sprintf("an answer of %s to %s", addr, from.node), func(ctx context.Context) error {
					result, err := c.Ping(ctx, addr, lab.PingOptions{Timeout: 250 * time.Millisecond})
					if err == nil && result.Lost() > 0 {
						err = errors.New("none")
					}
					return err
				})
				if err != nil {
					return err
				}
				ping, err := c.StartPing(addr, lab.PingOptions{Interval: pingEvery})
				if err != nil {
					return err
				}
				p.streams = append(p.streams, &stream{from, to, ping})
			}
		}
	}
	return nil
}

// watch replaces containers until ctx ends.
func (p *pings) watch(ctx context.Context) error {
	for {
		if err := sleep(ctx, pingEvery); err != nil {
			return nil
		}
		moved := false
		for m, c := range p.containers {
			file, err := lab.ReadSubnetFile(m.SubnetFile(m.network))
			if err != nil {
				return err
			}
			if slices.ContainsFunc(c.Addrs, func(a netip.Addr) bool {
				return !slices.ContainsFunc(file.Subnets(), func(s netip.Prefix) bool { return s.Contains(a) })
			}) {
				moved = true
				p.run.say("%s has another subnet, replacing its container", m.node)
				if err := p.end(ctx, func(s *stream) bool { return s.from == m || s.to == m }); err != nil {
					return err
				}
				if err := c.Remove(ctx); err != nil {
					return err
				}
				delete(p.containers, m)
			}
		}
		if !moved {
			continue
		}
		if err := p.house(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// stop ends all pings.
func (p *pings) stop(ctx context.Context) error {
	return p.end(ctx, func(*stream) bool { return true })
}

// late is how long before the end of a stream a packet must have been sent to
// count: an answer may still be under way.
const late = time.Second

// end ends some streams and takes down what they lost.
func (p *pings) end(ctx context.Context, which func(*stream) bool) error {
	var errs []error
	p.streams = slices.DeleteFunc(p.streams, func(s *stream) bool {
		if !which(s) {
			return false
		}
		stopped := time.Now()
		result, err := s.ping.Stop(ctx)
		errs = append(errs, err)
		p.mu.Lock()
		p.sent += result.Sent
		p.mu.Unlock()
		if len(result.MissingAt) != len(result.Missing) {
			errs = append(errs, fmt.Errorf("ping from %s to %s: hardly an answer: %s", s.from.node, s.to.node, result.Output))
		}
		for _, at := range result.MissingAt {
			if stopped.Sub(at) > late {
				p.run.record(func(h *History) { h.Losses = append(h.Losses, Loss{s.from.node, s.to.node, at.Sub(p.run.start)}) })
			}
		}
		return true
	})
	return errors.Join(errs...)
}
