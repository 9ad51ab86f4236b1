package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/probe"
)

// Values of probe_interval.
const (
	defaultInterval = "10s"
	noTests         = "0s"
)

// The targets of the continuous tests of paths.
const (
	targetTests = 1  // % of a core
	targetRate  = 20 // kbit/s, in each direction
)

// reachedLimit bounds the time until the paths to most peers were tested. With 5,000 of them, that takes five minutes.
const reachedLimit = 10 * time.Minute

// usage is what an agent and its host have used so far.
type usage struct {
	at                time.Time
	cpu               time.Duration
	underlay, overlay netlink.LinkStatistics
}

// readUsage reads the usage of the agent that runs on a host.
func readUsage(h *lab.Host, network string) (u usage, err error) {
	err = h.Do(func() error {
		for name, counters := range map[string]*netlink.LinkStatistics{"eth0": &u.underlay, "leno-" + network: &u.overlay} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return fmt.Errorf("counters of %s: %w", name, err)
			}
			*counters = *link.Attrs().Statistics
		}
		return nil
	})
	if err != nil {
		return u, err
	}
	u.at = time.Now()
	u.cpu, err = probe.CPUTime(h.Agent().Pid())
	return u, err
}

// rates is what is used in a time.
type rates struct {
	cpu                                          float64 // seconds in a second
	sent, received, sentOverlay, receivedOverlay float64 // kbit/s
}

// since returns what was used since an earlier usage.
func (u usage) since(before usage) rates {
	seconds := u.at.Sub(before.at).Seconds()
	rate := func(before, after uint64) float64 { return float64(after-before) * 8 / 1000 / seconds }
	return rates{
		cpu:             (u.cpu - before.cpu).Seconds() / seconds,
		sent:            rate(before.underlay.TxBytes, u.underlay.TxBytes),
		received:        rate(before.underlay.RxBytes, u.underlay.RxBytes),
		sentOverlay:     rate(before.overlay.TxBytes, u.overlay.TxBytes),
		receivedOverlay: rate(before.overlay.RxBytes, u.overlay.RxBytes),
	}
}

// rest measures an idle agent, which tests paths at an interval, and what of that the tests need. The host has no agent
// before and after.
func (m *measurement) rest(ctx context.Context, h *lab.Host, network, what, interval string, target float64) error {
	with, err := m.watch(ctx, h, network, interval)
	if err != nil {
		return err
	}
	size, err := probe.Memory(h.Agent().Pid(), "VmRSS", "RssAnon", "VmHWM")
	if err != nil {
		return err
	}
	m.result.add(what+": CPU time of a minute at rest", "s", 0, 60*with.cpu)
	m.result.add(what+": resident", "MiB", target, size["VmRSS"])
	m.result.add(what+": of that the heap and stacks", "MiB", 0, size["RssAnon"])
	m.result.add(what+": most ever resident", "MiB", 0, size["VmHWM"])
	if err := m.down(ctx, h); err != nil || interval == noTests {
		return err
	}
	without, err := m.watch(ctx, h, network, noTests)
	if err != nil {
		return err
	}
	m.result.tests(what, with, without)
	return m.down(ctx, h)
}

// tests records the continuous tests of paths: the difference between an agent with and one without them. The underlay
// has other traffic as well, the overlay has not.
func (r *result) tests(what string, with, without rates) {
	what += ": tests of paths, "
	r.add(what+"CPU time of a minute", "s", 0, 60*(with.cpu-without.cpu))
	r.add(what+"part of a core", "%", targetTests, 100*(with.cpu-without.cpu))
	r.add(what+"sent in the overlay", "kbit/s", targetRate, with.sentOverlay-without.sentOverlay)
	r.add(what+"received in the overlay", "kbit/s", targetRate, with.receivedOverlay-without.receivedOverlay)
	r.add(what+"sent on eth0", "kbit/s", 0, with.sent-without.sent)
	r.add(what+"received on eth0", "kbit/s", 0, with.received-without.received)
}

// watch starts an agent that tests paths at an interval, and returns what it needs when it is idle.
func (m *measurement) watch(ctx context.Context, h *lab.Host, network, interval string) (r rates, err error) {
	if err := m.up(ctx, h, m.config(h, network, interval)); err != nil {
		return r, err
	}
	if interval != noTests {
		if err := awaitReached(ctx, h, network); err != nil {
			return r, err
		}
	}
	if err := lab.Sleep(ctx, 10*time.Second); err != nil {
		return r, err
	}
	before, err := readUsage(h, network)
	if err != nil {
		return r, err
	}
	if err := lab.Sleep(ctx, m.idle); err != nil {
		return r, err
	}
	after, err := readUsage(h, network)
	if err != nil {
		return r, err
	}
	if interval != noTests { // tests of paths on which packets are lost cost more
		err = mostReached(ctx, h, network)
	}
	return after.since(before), err
}

// awaitReached waits until a host reaches most of its peers.
func awaitReached(ctx context.Context, h *lab.Host, network string) error {
	limited, cancel := context.WithTimeout(ctx, reachedLimit)
	defer cancel()
	for {
		err := mostReached(limited, h, network)
		if err == nil {
			return nil
		}
		if lab.Sleep(limited, time.Second) != nil {
			return fmt.Errorf("wait for the tests of paths: %w", err)
		}
	}
}

// mostReached returns an error unless the paths to 90 % of the peers of a host are reached, and not only with pings.
func mostReached(ctx context.Context, h *lab.Host, network string) error {
	status, body, err := h.Get(ctx, "/v1/network/"+network+"/peers")
	if err != nil {
		return err
	}
	var list api.PeerList
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		return fmt.Errorf("the agent on %s answers %d: %s", h.Name, status, body)
	}
	reached := 0
	for _, p := range list.Peers {
		if p.Path != nil && p.Path.State == api.PathReached && p.Path.Reason == "" {
			reached++
		}
	}
	if 10*reached < 9*len(list.Peers) || reached == 0 {
		return fmt.Errorf("%s reaches %d of %d peers", h.Name, reached, len(list.Peers))
	}
	return nil
}
