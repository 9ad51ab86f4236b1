package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

// The targets.
const (
	targetStart  = 0.1   // s, until the subnet file is written
	targetRoute  = 0.010 // s
	targetMemory = 50    // MiB, with few peers, of which some 33 are pages of the program file
)

// targetPeers is the target in s from the start until all of so many peers are in place.
var targetPeers = map[int]float64{1000: 0.15, 5000: 0.8}

// stepLimit bounds one start or one wait.
const stepLimit = time.Minute

type measurement struct {
	*lab.Lab
	result *result
	runs   int
	idle   time.Duration
	only   string // name of the only part to run, or "" for all
	older  string // another leno binary, or ""
	leno   string // paths of binaries
	consul string

	backend string // of the parts starts and peers
}

func (m *measurement) all(ctx context.Context, sizes []int) error {
	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"starts", m.few},
		{"restarts", m.lossless},
		{"udp", m.restarts},
		{"peers", func(ctx context.Context) error { return m.simulated(ctx, sizes) }},
	} {
		if m.only != "" && m.only != part.name {
			continue
		}
		if err := part.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// config returns the configuration of one host for one network. A host that is stopped releases its
// lease, so that its next start is that of a new host.
func (m *measurement) config(h *lab.Host, network, probeInterval string) string {
	body := fmt.Sprintf("  ipv4 {\n    prefix = %q\n  }\n  backend %q {}\n  ip_masq = true\n  forward = true", prefix, m.backend)
	text := h.Config(fmt.Sprintf("probe_interval = %q\nlease {\n  release_on_stop = true\n}\n", probeInterval), h.Network(network, body))
	return strings.Replace(text, `"DEBUG"`, `"INFO"`, 1)
}

// few measures the third of three hosts, and then how a lease becomes a route on the first one.
func (m *measurement) few(ctx context.Context) error {
	const network, interval = "few", defaultInterval
	a, b, c := m.Hosts[0], m.Hosts[1], m.Hosts[2]
	for _, h := range []*lab.Host{a, b} {
		if err := m.up(ctx, h, m.config(h, network, interval)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(c.ConfigFile(), []byte(m.config(c, network, interval)), 0o644); err != nil {
		return err
	}
	file, err := lab.ReadSubnetFile(a.SubnetFile(network))
	if err != nil {
		return err
	}
	onA := file.Subnet.Masked().Addr() // address of the VXLAN device
	for range m.runs {
		fresh, again, err := m.twice(ctx, c, network, 2, func(ctx context.Context, s started) error {
			at, err := awaitAnswer(ctx, c, onA)
			m.result.seconds("start of a new host to the first ping answered", 0, at.Sub(s.at))
			return err
		})
		if err != nil {
			return err
		}
		m.result.seconds("start to subnet file, new host", targetStart, fresh.took)
		m.result.seconds("  CPU time", 0, fresh.cpu)
		m.result.seconds("start to subnet file, restart", targetStart, again.took)
		m.result.seconds("  CPU time of a restart", 0, again.cpu)
	}
	if err := m.rest(ctx, c, network, "2 real peers", interval, targetMemory); err != nil {
		return err
	}
	if err := m.routes(ctx, a, network); err != nil {
		return err
	}
	return errors.Join(a.StopAgent(ctx), b.StopAgent(ctx))
}

// simulated measures one host among simulated ones, with each of the sizes.
func (m *measurement) simulated(ctx context.Context, sizes []int) (err error) {
	interval := noTests // answers to WireGuard's packets would need the peers' keys
	if m.backend == "vxlan" {
		interval = defaultInterval
		stop, failed := answerTests(ctx, m.Switch)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	for _, n := range sizes {
		if err := m.many(ctx, n, interval); err != nil {
			return fmt.Errorf("%d peers: %w", n, err)
		}
	}
	return nil
}

// many measures one host among n simulated ones. It empties the store.
func (m *measurement) many(ctx context.Context, n int, interval string) error {
	network := fmt.Sprintf("many-%d", n)
	h := m.Hosts[2]
	// The first start defines the network.
	if err := m.up(ctx, h, m.config(h, network, interval)); err != nil {
		return err
	}
	if err := m.down(ctx, h); err != nil {
		return err
	}
	if err := m.fill(ctx, network, n); err != nil {
		return err
	}
	for range m.runs {
		fresh, again, err := m.twice(ctx, h, network, n, func(_ context.Context, s started) error {
			took, err := applyTook(h.Agent())
			m.result.seconds(fmt.Sprintf("%d peers: of that the datapath, by the agent's log", n), 0, took)
			return err
		})
		if err != nil {
			return err
		}
		m.result.seconds(fmt.Sprintf("%d peers: start to all in place, new host", n), targetPeers[n], fresh.took)
		m.result.seconds(fmt.Sprintf("%d peers: CPU time", n), 0, fresh.cpu)
		m.result.seconds(fmt.Sprintf("%d peers: restart to subnet file", n), 0, again.took)
		m.result.seconds(fmt.Sprintf("%d peers: CPU time of a restart", n), 0, again.cpu)
	}
	if err := m.rest(ctx, h, network, fmt.Sprintf("%d peers", n), interval, 0); err != nil {
		return err
	}
	// The next network has the same pool, and an agent defines none that overlaps another one.
	_, err := m.Consul.Client().KV().DeleteTree("leno/", nil)
	return err
}

// twice starts the agent of a new host, kills it, and starts it again with all of its state but the
// subnet file. Then the host leaves. Whenever the file is there, all of the host's peers must be in
// place.
func (m *measurement) twice(ctx context.Context, h *lab.Host, network string, peers int, between func(context.Context, started) error) (fresh, again started, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	if fresh, err = start(ctx, h, network); err != nil {
		return fresh, again, err
	}
	if err := errors.Join(complete(h, network, peers), between(ctx, fresh)); err != nil {
		return fresh, again, err
	}
	if err := m.quiet(ctx, h); err != nil {
		return fresh, again, err
	}
	if err := errors.Join(h.KillAgent(), os.Remove(h.SubnetFile(network))); err != nil {
		return fresh, again, err
	}
	if again, err = start(ctx, h, network); err != nil {
		return fresh, again, err
	}
	if err := complete(h, network, peers); err != nil {
		return fresh, again, err
	}
	return fresh, again, errors.Join(m.quiet(ctx, h), m.down(ctx, h))
}

// routes writes leases to Consul and waits for their routes on a host.
func (m *measurement) routes(ctx context.Context, h *lab.Host, network string) error {
	consul := m.Consul.Client()
	session, err := newSession(ctx, consul)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	defer close(done)
	events, err := routeEvents(h, done)
	if err != nil {
		return err
	}
	for i := range 2 * m.runs {
		if err := lab.Sleep(ctx, 500*time.Millisecond+rand.N(500*time.Millisecond)); err != nil {
			return err
		}
		begin := time.Now()
		if err := m.change(ctx, network, session, i+1); err != nil {
			return fmt.Errorf("write the lease of peer %d: %w", i+1, err)
		}
		written := time.Since(begin)
		waiting, cancel := context.WithTimeout(ctx, stepLimit)
		at, err := awaitRoute(waiting, events, subnetOf(i+1))
		cancel()
		if err != nil {
			return err
		}
		m.result.seconds("lease sent to Consul to route on another host", targetRoute, at.Sub(begin))
		m.result.seconds("  Consul's answer to the write", 0, written)
	}
	return nil
}

// up starts an agent with a configuration and waits until it is ready.
func (m *measurement) up(ctx context.Context, h *lab.Host, config string) error {
	return errors.Join(h.StartAgent(config), h.WaitReady(ctx))
}

// down makes a host leave the network and forget its state, and waits until the other hosts have
// handled that.
func (m *measurement) down(ctx context.Context, h *lab.Host) error {
	return errors.Join(h.StopAgent(ctx), os.RemoveAll(h.DataDir()), lab.Sleep(ctx, time.Second))
}

// quiet waits until an agent has finished the work that follows a start.
func (m *measurement) quiet(ctx context.Context, h *lab.Host) error {
	return errors.Join(h.WaitReady(ctx), lab.Sleep(ctx, time.Second))
}
