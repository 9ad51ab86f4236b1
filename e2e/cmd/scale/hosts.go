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

// A group is the hosts of one network that start.
type group struct {
	network registry.Network
	among   int // leases of other hosts
	hosts   []*host
}

// withGroup calls do with a group of n hosts in a network of its own.
func (m *measurement) withGroup(ctx context.Context, n, among int, do func(*group) error) (err error) {
	w, err := newWorld(ctx, m.store, fmt.Sprintf("starts-%d-%d", n, among), among, 100)
	if err != nil {
		return err
	}
	g := &group{network: w.network, among: among}
	for i := among; i < among+n; i++ {
		backend, err := attributes(i)
		if err != nil {
			return err
		}
		g.hosts = append(g.hosts, &host{claim: registry.Claim{Node: hostName(i), NodeID: nodeID(i),
			PublicIPs: []netip.Addr{publicIP(i)}, MTU: 1450, Backend: backend, TTL: leaseTTL, Hold: 24 * time.Hour}})
	}
	defer func() {
		for _, h := range g.hosts {
			if h.client != nil {
				err = errors.Join(err, h.client.Close())
			}
		}
	}()
	return do(g)
}

// starts compares starts in networks of different sizes, while no sessions of other hosts end. Then it makes n hosts start
// within a time and restart at once, and twice as many start within six times that.
func (m *measurement) starts(ctx context.Context, n int, within time.Duration, sizes []size) error {
	if err := m.costs(ctx, max(n/10, 10), within/10, sizes); err != nil { // at the rate of the first group
		return err
	}
	err := m.withGroup(ctx, n, 0, func(g *group) error {
		if _, err := m.start(ctx, g, within, "start"); err != nil {
			return err
		}
		if _, err := m.start(ctx, g, 0, "restart"); err != nil {
			return err
		}
		return m.renewals(ctx, g.hosts)
	})
	if err != nil {
		return err
	}
	return m.withGroup(ctx, 2*n, 0, func(g *group) error {
		_, err := m.start(ctx, g, 6*within, "start")
		return err
	})
}

// costs compares the servers' CPU time for a start in networks of different sizes, without what they use at rest: until
// a new host holds a lease, and until one that restarts does. A new host has read the leases before, as each has to.
func (m *measurement) costs(ctx context.Context, n int, within time.Duration, sizes []size) error {
	verbs := []string{"start", "restart"}
	each := map[string][]time.Duration{}
	for _, s := range sizes {
		err := m.withGroup(ctx, n, s.leases, func(g *group) error {
			rest, err := m.serversUse(ctx, func(ctx context.Context) (int, error) {
				return 0, lab.Sleep(ctx, min(renewalsFor, m.minute))
			})
			if err != nil {
				return err
			}
			for i, rounds := range []int{1, m.rounds} { // a restart costs little, so there are several
				var sum float64
				for range rounds {
					used, err := m.start(ctx, g, within, verbs[i])
					if err != nil {
						return err
					}
					sum += float64(used.cpu) - float64(rest.cpu)*float64(used.took)/float64(rest.took)
				}
				one := max(time.Duration(sum/float64(n*rounds)), time.Microsecond)
				m.result.seconds(fmt.Sprintf("one %s among %d leases: server CPU", verbs[i], s.leases), 0, one)
				each[verbs[i]] = append(each[verbs[i]], one)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, verb := range verbs {
		factor := float64(slices.Max(each[verb])) / float64(slices.Min(each[verb]))
		m.result.add(fmt.Sprintf("factor: one %s, most to least of these, server CPU", verb), "times", 1.5, factor)
	}
	return nil
}

// start makes hosts start at random moments within a time, each with a new client. Hosts that start again must have the
// leases and sessions that they had. Among leases of other hosts, it only returns what the servers used.
func (m *measurement) start(ctx context.Context, g *group, within time.Duration, verb string) (servers use, err error) {
	hosts, n := g.hosts, len(g.hosts)
	what := fmt.Sprintf("%d hosts %s within %s: ", n, verb, within)
	if within == 0 {
		what = fmt.Sprintf("%d hosts %s at once: ", n, verb)
	}
	m.log("%s, among %d leases", strings.TrimSuffix(what, ": "), g.among)
	for i, h := range hosts {
		if h.client != nil {
			if err := h.client.Close(); err != nil {
				return servers, err
			}
			h.claim.Session, h.claim.Prefer, h.claim.Since = h.lease.Session, h.lease.Subnet(), h.lease.ModifyIndex
		}
		if h.client, err = m.store.open(i, g.network.Name, &h.meter); err != nil {
			return servers, err
		}
		if g.among > 0 && h.claim.Session == "" {
			if _, _, err := h.client.WatchLeases(ctx, g.network, registry.Known); err != nil {
				return servers, err
			}
		}
		h.tries = 0
		h.known.Store(0)
		h.received.Store(0)
	}
	clients, err := probe.CPUTime(os.Getpid())
	if err != nil {
		return servers, err
	}
	all := g.among + n
	if g.among > 0 {
		all = 0
	}
	var mu sync.Mutex
	var lastStart, lastSeen time.Time
	servers, err = m.serversUse(ctx, func(ctx context.Context) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		var group errgroup.Group
		for _, h := range hosts {
			group.Go(func() error {
				if err := lab.Sleep(ctx, rand.N(within+1)); err != nil {
					return err
				}
				begin := time.Now()
				err := h.start(ctx, g.network, all)
				mu.Lock()
				defer mu.Unlock()
				lastStart, lastSeen = later(lastStart, begin), later(lastSeen, time.Now())
				return err
			})
		}
		return n, group.Wait()
	})
	if err != nil {
		least := slices.MinFunc(hosts, func(a, b *host) int { return int(a.known.Load() - b.known.Load()) })
		return servers, fmt.Errorf("%d hosts %s; one has seen %d leases: %w", n, verb, least.known.Load(), err)
	}
	clientsAfter, err := probe.CPUTime(os.Getpid())
	if err != nil {
		return servers, err
	}
	for _, h := range hosts {
		if c := h.claim; c.Session != "" && (h.lease.Subnet() != c.Prefer || h.lease.Session != c.Session) {
			return servers, fmt.Errorf("%s restarts: it had %s with session %s, and has %s with session %s",
				c.Node, c.Prefer, c.Session, h.lease.Subnet(), h.lease.Session)
		}
	}
	if g.among > 0 {
		return servers, nil
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
	m.result.add(what+"claims given up", "%", 1, 100*float64(tries-n)/float64(n))
	m.result.seconds(what+"server CPU", 0, servers.cpu)
	m.result.seconds(what+"client CPU", 0, clientsAfter-clients)
	return servers, nil
}

// start takes a lease and watches until n leases are known, 0 for not at all, with the time limit of an agent. It
// retries after 1 to 2 s where an agent's pauses grow.
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
		if h.claim.Prefer.IsValid() {
			_, _, _ = h.client.WatchLease(limited, network, h.claim.Prefer, 0) // another host may have taken it
		}
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
	for index := registry.Known; int(h.known.Load()) != n; {
		set, next, err := h.client.WatchLeases(ctx, network, index)
		if err != nil {
			if err := again(err); err != nil {
				return err
			}
			continue
		}
		index = next
		h.known.Store(int64(len(set.Leases)))
	}
	return nil
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
