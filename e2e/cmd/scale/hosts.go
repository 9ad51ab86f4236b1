package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/probe"
	"github.com/lenonet/leno/registry"
)

// The renewal interval of an agent with the default configuration is lease.ttl minus
// lease.renew_margin.
const (
	leaseTTL    = 2 * time.Minute
	renewEvery  = leaseTTL - 80*time.Second
	renewalsFor = 10 * time.Second
)

// An agent gives up a claim after claimTimeout, and pauses for up to longestRetry before it tries again.
const (
	claimTimeout = 2 * time.Minute
	longestRetry = 2 * time.Second
)

// A host is one simulated host that starts: it takes a lease and watches until it knows the leases
// of all others.
type host struct {
	meter
	client client
	claim  registry.Claim
	lease  registry.Lease
	tries  int // calls of Acquire
	held   time.Time
	known  atomic.Int64 // leases seen so far
}

// starts makes n hosts start at random moments within a time. Then all of them restart at once.
func (m *measurement) starts(ctx context.Context, n int, within time.Duration) (err error) {
	network, err := newNetwork(fmt.Sprintf("starts-%d", n))
	if err != nil {
		return err
	}
	if network, err = define(ctx, m.store, network); err != nil {
		return err
	}
	hosts := make([]*host, n)
	for i := range hosts {
		backend, err := attributes(i)
		if err != nil {
			return err
		}
		hosts[i] = &host{claim: registry.Claim{Node: hostName(i), NodeID: nodeID(i), PublicIPs: []netip.Addr{publicIP(i)}, MTU: 1450,
			Backend: backend, TTL: leaseTTL, Hold: 24 * time.Hour}}
	}
	defer func() {
		for _, h := range hosts {
			if h.client != nil {
				err = errors.Join(err, h.client.Close())
			}
		}
	}()
	if err := m.start(ctx, network, hosts, within, "start"); err != nil {
		return err
	}
	for _, h := range hosts {
		h.claim.Session, h.claim.Prefer, h.claim.Since = h.lease.Session, h.lease.Subnet(), h.lease.ModifyIndex
	}
	if err := m.start(ctx, network, hosts, 0, "restart"); err != nil {
		return err
	}
	for _, h := range hosts {
		if h.lease.Subnet() != h.claim.Prefer || h.lease.Session != h.claim.Session {
			return fmt.Errorf("%s restarts: it had %s, and has %s", h.claim.Node, h.claim.Prefer, h.lease.Subnet())
		}
	}
	return m.renewals(ctx, hosts)
}

// start makes hosts start at random moments within a time, each with a new client.
func (m *measurement) start(ctx context.Context, network registry.Network, hosts []*host, within time.Duration, verb string) error {
	n := len(hosts)
	what := fmt.Sprintf("%d hosts %s within %s: ", n, verb, within)
	if within == 0 {
		what = fmt.Sprintf("%d hosts %s at once: ", n, verb)
	}
	m.log("%s", strings.TrimSuffix(what, ": "))
	for i, h := range hosts {
		if h.client != nil {
			if err := h.client.Close(); err != nil {
				return err
			}
		}
		var err error
		if h.client, err = m.store.open(i, network.Name, &h.meter); err != nil {
			return err
		}
		h.tries = 0
		h.received.Store(0)
	}
	servers, err := m.store.cpu()
	if err != nil {
		return err
	}
	clients, err := probe.CPUTime(os.Getpid())
	if err != nil {
		return err
	}

	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var group errgroup.Group
	var mu sync.Mutex
	var lastStart, lastSeen time.Time
	for _, h := range hosts {
		group.Go(func() error {
			if err := lab.Sleep(limited, rand.N(within+1)); err != nil {
				return err
			}
			begin := time.Now()
			err := h.start(limited, network, n)
			mu.Lock()
			defer mu.Unlock()
			lastStart, lastSeen = later(lastStart, begin), later(lastSeen, time.Now())
			return err
		})
	}
	if err := group.Wait(); err != nil {
		least := slices.MinFunc(hosts, func(a, b *host) int { return int(a.known.Load() - b.known.Load()) })
		return fmt.Errorf("%d hosts %s; one has seen %d leases: %w", n, verb, least.known.Load(), err)
	}
	serversAfter, err := m.store.cpu()
	if err != nil {
		return err
	}
	clientsAfter, err := probe.CPUTime(os.Getpid())
	if err != nil {
		return err
	}

	var bytes []int64
	tries := 0
	var lastHeld time.Time
	for _, h := range hosts {
		bytes = append(bytes, h.received.Load())
		tries += h.tries
		lastHeld = later(lastHeld, h.held)
	}
	slices.Sort(bytes)
	m.result.seconds(what+"last start until all hold a lease", 5, lastHeld.Sub(lastStart))
	m.result.seconds(what+"last start until all have seen all", 0, lastSeen.Sub(lastStart))
	m.result.add(what+"received by a host, median", "B", 1e6, float64(bytes[n/2]))
	m.result.add(what+"received by a host, most", "B", 0, float64(bytes[n-1]))
	m.result.add(what+"attempts to take a lease", "", 1.01*float64(n), float64(tries))
	m.result.seconds(what+"server CPU", 0, serversAfter-servers)
	m.result.seconds(what+"client CPU", 0, clientsAfter-clients)
	return nil
}

// start takes a lease and watches until n leases are known, with the time limit of an agent. It retries
// after 1 to 2 s where an agent's pauses grow.
func (h *host) start(ctx context.Context, network registry.Network, n int) (err error) {
	again := func(err error) error {
		if errors.Is(err, registry.ErrDuplicateNode) || errors.Is(err, registry.ErrNetworkFull) || ctx.Err() != nil {
			return err
		}
		return lab.Sleep(ctx, longestRetry/2+rand.N(longestRetry/2))
	}
	for {
		h.tries++
		limited, cancel := context.WithTimeout(ctx, claimTimeout)
		h.lease, err = h.client.Acquire(limited, network, h.claim)
		cancel()
		if err == nil {
			h.held = time.Now()
			break
		}
		if err := again(err); err != nil {
			return err
		}
	}
	for index := registry.Known; ; {
		set, next, err := h.client.WatchLeases(ctx, network, index)
		if err != nil {
			if err := again(err); err != nil {
				return err
			}
			continue
		}
		index = next
		h.known.Store(int64(len(set.Leases)))
		if len(set.Leases) == n {
			return nil
		}
	}
}

// renewals renews all leases much more often than agents do and converts the cost of one renewal to
// an hour at the default interval.
func (m *measurement) renewals(ctx context.Context, hosts []*host) error {
	span := min(renewalsFor, m.minute)
	m.log("renewals for %s", span)
	idle, err := m.serversUse(ctx, func(ctx context.Context) (int, error) { return 0, lab.Sleep(ctx, span) })
	if err != nil {
		return err
	}
	// 20 times the rate of 1,000 hosts, and slow enough that no renewal has to queue.
	pace := time.Second / 500
	busy, err := m.serversUse(ctx, func(ctx context.Context) (int, error) {
		var group errgroup.Group
		group.SetLimit(inFlight)
		tick := time.NewTicker(pace)
		defer tick.Stop()
		count := 0
		for end := time.Now().Add(span); time.Now().Before(end); count++ {
			h := hosts[count%len(hosts)]
			group.Go(func() error { return h.client.Renew(ctx, h.lease) })
			select {
			case <-tick.C:
			case <-ctx.Done():
				return count, ctx.Err()
			}
		}
		return count, group.Wait()
	})
	if err != nil {
		return fmt.Errorf("renew: %w", err)
	}
	each := (busy.cpu.Seconds() - idle.cpu.Seconds()*busy.took.Seconds()/idle.took.Seconds()) / float64(busy.count)
	hourly := float64(time.Hour/renewEvery) * float64(len(hosts))
	m.result.seconds("three servers with nothing to do: CPU a second", 0, time.Duration(float64(idle.cpu)/idle.took.Seconds()))
	m.result.seconds("one renewal: server CPU", 0, time.Duration(each*float64(time.Second)))
	m.result.add(fmt.Sprintf("renewals an hour of %d hosts", len(hosts)), "", 0, hourly)
	m.result.seconds(fmt.Sprintf("renewals of %d hosts: server CPU an hour", len(hosts)), 0, time.Duration(each*hourly*float64(time.Second)))
	return nil
}

// use is the servers' CPU time while something was done count times.
type use struct {
	cpu, took time.Duration
	count     int
}

func (m *measurement) serversUse(ctx context.Context, do func(context.Context) (int, error)) (u use, err error) {
	before, err := m.store.cpu()
	if err != nil {
		return u, err
	}
	start := time.Now()
	if u.count, err = do(ctx); err != nil {
		return u, err
	}
	u.took = time.Since(start)
	after, err := m.store.cpu()
	u.cpu = after - before
	return u, err
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
