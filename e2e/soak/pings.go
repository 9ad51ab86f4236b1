package soak

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
	sent       int // by those that have ended
}

// stream is one ping that goes on.
type stream struct {
	from, to *machine
	addr     netip.Addr
	ping     *lab.PingStream
}

// start houses everybody and waits until everybody pings everybody.
func (p *pings) start(ctx context.Context) error {
	if err := p.house(ctx); err != nil {
		return err
	}
	return lab.WaitFor(ctx, "answers from container to container", func(ctx context.Context) error {
		missing, err := p.connect(ctx)
		if err == nil && missing > 0 {
			err = fmt.Errorf("%d are missing", missing)
		}
		return err
	})
}

// house gives a container to every machine that has none.
func (p *pings) house(ctx context.Context) error {
	for _, m := range p.run.machines {
		if !m.carries || p.containers[m] != nil {
			continue
		}
		c, err := m.AddContainer(ctx, m.network)
		if err != nil {
			return err
		}
		p.containers[m] = c
	}
	return nil
}

// connect starts the pings that there are none of, each once a first answer came:
// routes to a new container take a moment. It counts those without an answer.
func (p *pings) connect(ctx context.Context) (missing int, err error) {
	for from, c := range p.containers {
		for to, other := range p.containers {
			for _, addr := range other.Addrs {
				if from == to || slices.ContainsFunc(p.streams, func(s *stream) bool { return s.from == from && s.addr == addr }) {
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
				p.streams = append(p.streams, &stream{from, to, addr, ping})
			}
		}
	}
	return missing, nil
}

// watch replaces containers until ctx ends.
func (p *pings) watch(ctx context.Context) error {
	for {
		if err := sleep(ctx, pingEvery); err != nil {
			return nil
		}
		for m, c := range p.containers {
			file, err := lab.ReadSubnetFile(m.SubnetFile(m.network))
			if err != nil {
				return err
			}
			if slices.ContainsFunc(c.Addrs, func(a netip.Addr) bool {
				return !slices.ContainsFunc(file.Subnets(), func(s netip.Prefix) bool { return s.Contains(a) })
			}) {
				ctx := context.WithoutCancel(ctx) // what is begun is brought to an end
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
		if err := p.house(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		if _, err := p.connect(ctx); err != nil && ctx.Err() == nil {
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
		p.sent += result.Sent
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
