package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

const (
	targetGap = 0.2 // s
	// pingEvery is the interval of 100 pings a second. No measured gap can be shorter.
	pingEvery = 10 * time.Millisecond
)

// restarts measures the effect of an agent's restart on packets that the agent itself forwards:
// udp's, between two containers, one of them on the agent's host. One TCP connection must survive
// all restarts.
func (m *measurement) restarts(ctx context.Context) (err error) {
	const network = "restarts"
	a, b := m.Hosts[0], m.Hosts[1]
	var containers []*lab.Container
	for _, h := range []*lab.Host{a, b} {
		body := fmt.Sprintf("  ipv4 {\n    prefix = %q\n  }\n  backend \"udp\" {}", prefix)
		if err := m.up(ctx, h, strings.Replace(h.Config(h.Network(network, body)), `"DEBUG"`, `"INFO"`, 1)); err != nil {
			return err
		}
		c, err := h.AddContainer(ctx, network)
		if err != nil {
			return err
		}
		containers = append(containers, c)
	}
	from, to := containers[1], containers[0]
	err = lab.WaitFor(ctx, "a first answer", func(ctx context.Context) error {
		r, err := from.Ping(ctx, to.Addrs[0], lab.PingOptions{})
		if err == nil && r.Lost() > 0 {
			err = errors.New("none")
		}
		return err
	})
	if err != nil {
		return err
	}
	talk, err := from.StartTalk(ctx, to.Namespace, to.Addrs[0])
	if err != nil {
		return err
	}
	defer func() {
		_, ended := talk.Stop()
		err = errors.Join(err, ended)
	}()
	for _, way := range []struct {
		name string
		end  func(*lab.Host) error
	}{
		{"kill -9 and a start", (*lab.Host).KillAgent},
		{"SIGTERM and a start", func(h *lab.Host) error { return h.StopAgent(ctx) }},
	} {
		for range 2 * m.runs {
			if err := m.restart(ctx, "udp, "+way.name+": ", a, way.end, crossing{from, to.Addrs[0], talk}); err != nil {
				return err
			}
		}
	}
	return errors.Join(a.StopAgent(ctx), b.StopAgent(ctx))
}

// crossing is the traffic between a container on the restarted host and one on another host.
type crossing struct {
	from *lab.Container
	to   netip.Addr
	talk *lab.Talk
}

// restart ends the agent and starts it at once, as a supervisor does.
func (m *measurement) restart(ctx context.Context, what string, h *lab.Host, end func(*lab.Host) error, c crossing) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	if err := m.quiet(ctx, h); err != nil {
		return err
	}
	pings, err := c.from.StartEchoes(c.to, pingEvery)
	if err != nil {
		return err
	}
	if err := pings.WaitAnswers(ctx, 30); err != nil {
		return err
	}
	c.talk.Pause()
	began := time.Now()
	if err := end(h); err != nil {
		return err
	}
	ended := time.Since(began)
	if err := h.RestartAgent(); err != nil {
		return err
	}
	if err := errors.Join(pings.WaitAnswers(ctx, 30), h.WaitReady(ctx), c.talk.WaitEchoes(ctx, 30)); err != nil {
		return err
	}
	result, err := pings.Stop()
	if err != nil {
		return err
	}
	m.result.seconds(what+"longest time without an answer", targetGap, result.Gap)
	m.result.add(what+"pings lost, at 100 a second", "pings", 0, float64(result.Lost()))
	m.result.seconds(what+"longest pause of a TCP connection", 0, c.talk.Pause())
	m.result.seconds(what+"time the process took to end", 0, ended)
	return nil
}
