package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// TestDirections loses packets in one direction, with every backend.
func TestDirections(t *testing.T) {
	t.Parallel()
	w := open(t, 15)
	tunnel := func(port int) carried {
		udp := fmt.Sprintf("udp dport %d", port)
		return carried{"ip saddr ADDR0 " + udp, "ip daddr ADDR0 " + udp, udp}
	}
	routed := carried{"ip saddr { ADDR0, SUBNET0 } ip daddr POOL.0.0/16", "ip daddr SUBNET0", "ip daddr POOL.0.0/16"}
	for _, of := range []struct {
		backend string
		carried carried
	}{
		{`"vxlan" {}`, tunnel(8472)},
		{`"udp" { port = 8285 }`, tunnel(8285)},
		{`"wireguard" { listen_port = 51820 }`, tunnel(51820)},
		{`"host-gw" {}`, routed},
	} {
		p := w.admit(3, of.backend)
		w.visit(p, func() error { return p.directions(of.carried) })
	}
	p := w.admit(3, `"vxlan" {}`)
	w.visit(p, p.losesSome)
	if err := w.runs.Wait(); err != nil {
		t.Error(err)
	}
}

// carried are nft expressions for the packets of a network as a backend carries them from host 0, to host 0, and in a host's
// input.
type carried struct{ fromHost0, toHost0, all string }

// directions drops one direction of what the backend carries between two of three hosts, then everything that one of them
// receives, and checks that all of them show the right direction.
func (p *patient) directions(c carried) error {
	if err := p.start(); err != nil {
		return err
	}
	for _, h := range p.hosts { // host-gw needs the address of the containers' bridge
		if _, err := h.AddContainer(p.w.ctx, p.network); err != nil {
			return err
		}
	}
	file, err := lab.ReadSubnetFile(filepath.Join(p.hosts[0].Dir, p.network+".env"))
	if err != nil {
		return err
	}
	drop := func(hook, packets string) func(*patient) error {
		return on(1, rule(hook, strings.ReplaceAll(packets, "SUBNET0", file.Subnets()[0].Masked().String())+" drop"))
	}
	if err := p.knowsDirections(); err != nil {
		return err
	}
	for _, f := range []struct {
		name     string
		seed     func(*patient) error
		of0, of1 direction
	}{
		{"to host 1, by its rule", drop("prerouting", c.fromHost0), toPeer, fromPeer},
		{"from host 1, by its rule", drop("postrouting", c.toHost0), fromPeer, toPeer},
	} {
		began := time.Now()
		if err := f.seed(p); err != nil {
			return err
		}
		if err := p.showsDirection(0, 1, f.of0); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if err := p.showsDirection(1, 0, f.of1); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		p.w.t.Logf("%s, %s: shown after %s", p.network, f.name, time.Since(began).Round(time.Second))
		if err := on(1, flush)(p); err != nil {
			return err
		}
		began = time.Now()
		if err := p.knowsDirections(); err != nil {
			return fmt.Errorf("%s, cured: %w", f.name, err)
		}
		p.w.t.Logf("%s, %s: the end is shown after %s", p.network, f.name, time.Since(began).Round(time.Second))
	}
	if err := p.onlyMessages(); err != nil {
		return err
	}
	if err := drop("prerouting", c.all)(p); err != nil {
		return err
	}
	err = lab.WaitFor(p.w.ctx, p.hosts[1].Name+" to be cut off", func(ctx context.Context) error {
		c, err := p.pathsCheck(ctx, 1)
		if err == nil && (c.Status != api.Critical || !strings.Contains(c.Reason, "this host reaches no other one")) {
			err = fmt.Errorf("%+v", c)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := p.showsDirection(0, 1, toPeer); err != nil {
		return fmt.Errorf("the other host is cut off: %w", err)
	}
	if err := on(1, flush)(p); err != nil {
		return err
	}
	return p.knowsDirections()
}

// onlyMessages checks that a rule that drops the agents' messages alone changes no state.
func (p *patient) onlyMessages() error {
	if err := on(1, rule("input", "udp dport 5367 drop"))(p); err != nil {
		return err
	}
	err := lab.WaitFor(p.w.ctx, "the direction not to be known", func(ctx context.Context) error {
		path, err := p.path(ctx, 1, 0)
		switch {
		case err != nil:
			return err
		case path.State == api.PathLost:
			p.w.t.Errorf("a rule drops only messages: %+v", path)
		case path.State != api.PathReached || path.FromPeer != nil:
			return fmt.Errorf("%+v", path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := on(1, flush)(p); err != nil {
		return err
	}
	return p.knowsDirections()
}

// losesSome drops every fifth packet to host 1. Host 0 shows the direction, and doctor says on which side the fault is.
func (p *patient) losesSome() error {
	if err := p.start(); err != nil {
		return err
	}
	if err := p.knowsDirections(); err != nil {
		return err
	}
	if err := on(1, rule("input", "ip saddr ADDR0 udp dport 8472 numgen inc mod 5 0 drop"))(p); err != nil {
		return err
	}
	if err := p.showsDirection(0, 1, someToPeer); err != nil {
		return err
	}
	if err := p.finds(want{check: "peers", warning: true, network: "NETWORK", peer: "HOST1",
		words: []string{"most of them to HOST1", "the other hosts that answer (1) do not show it: the fault is on the side of HOST1"}}); err != nil {
		return err
	}
	if err := on(1, flush)(p); err != nil {
		return err
	}
	if err := p.isWell(); err != nil {
		return err
	}
	return p.knowsDirections()
}

// direction is what a host shows of a path on which packets of one direction are lost: the state, the end of the reason, an
// event, and a metric.
type direction struct{ state, words, event, metric string }

var (
	toPeer     = direction{api.PathLost, "packets to %s are lost", "packets to %s are lost", "direction=\"to_peer\",network=%q} 1"}
	fromPeer   = direction{api.PathLost, "packets from %s are lost", "packets from %s are lost", "direction=\"from_peer\",network=%q} 1"}
	someToPeer = direction{api.PathLossy, "packets were lost, most of them to %s", "packets are lost between this host and %s", "network=%q,state=\"lossy\"} 1"}
)

// knowsDirections blocks until all hosts show that the paths between them lose nothing in either direction.
func (p *patient) knowsDirections() error {
	return lab.WaitFor(p.w.ctx, "all paths to lose nothing", func(ctx context.Context) error {
		for i := range p.hosts {
			for j := range p.hosts {
				if i == j {
					continue
				}
				path, err := p.path(ctx, i, j)
				if err != nil {
					return err
				}
				if path.State != api.PathReached || path.ToPeer == nil || *path.ToPeer > 0 || path.FromPeer == nil || *path.FromPeer > 0 {
					return fmt.Errorf("%s to %s: %s, %+v", p.hosts[i].Name, p.hosts[j].Name, path.Summary(), path)
				}
			}
		}
		return nil
	})
}

// showsDirection blocks until the check, the list of peers, the events and the metrics of host i show the direction in
// which packets of host j are lost.
func (p *patient) showsDirection(i, j int, d direction) error {
	h, reason, event := p.hosts[i], fmt.Sprintf(d.words, p.hosts[j].Name), fmt.Sprintf(d.event, p.hosts[j].Name)
	return lab.WaitFor(p.w.ctx, fmt.Sprintf("%s to show that %s", h.Name, reason), func(ctx context.Context) error {
		path, err := p.path(ctx, i, j)
		if err != nil {
			return err
		}
		if path.State != d.state || !strings.HasSuffix(path.Reason, reason) {
			return fmt.Errorf("the path: %s, %+v", path.Summary(), path)
		}
		c, err := p.pathsCheck(ctx, i)
		if err != nil {
			return err
		}
		if c.Status != api.Warning || !strings.Contains(c.Reason, reason) {
			return fmt.Errorf("the check: %+v", c)
		}
		_, metrics, err := h.Get(ctx, "/v1/agent/metrics?format=prometheus")
		if line := fmt.Sprintf(d.metric, p.network); err == nil && !strings.Contains(metrics, line) {
			return fmt.Errorf("no metric with %s", line)
		}
		var events api.EventList
		if err := getJSON(ctx, h, "/v1/agent/events", &events); err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Events, func(e api.Event) bool { return strings.Contains(e.Message, event) }) {
			return fmt.Errorf("no event that %s", event)
		}
		_, page, err := h.Get(ctx, "/ui/network/"+p.network)
		if err == nil && !strings.Contains(page, reason) {
			err = fmt.Errorf("the page does not show it")
		}
		return err
	})
}

// path returns what host i shows of the path to host j.
func (p *patient) path(ctx context.Context, i, j int) (out api.PeerPath, err error) {
	var list api.PeerList
	if err := getJSON(ctx, p.hosts[i], "/v1/network/"+p.network+"/peers", &list); err != nil {
		return out, err
	}
	k := slices.IndexFunc(list.Peers, func(o api.Peer) bool { return o.Node == p.hosts[j].Name })
	if k < 0 || list.Peers[k].Path == nil {
		return out, fmt.Errorf("the peers are %+v", list.Peers)
	}
	return *list.Peers[k].Path, nil
}

// pathsCheck returns the check paths of host i.
func (p *patient) pathsCheck(ctx context.Context, i int) (out api.Check, err error) {
	var report api.Health
	if err := getJSON(ctx, p.hosts[i], "/healthz", &report); err != nil {
		return out, err
	}
	for _, n := range report.Networks {
		for _, c := range n.Checks {
			if n.Network == p.network && c.Name == "paths" {
				return c, nil
			}
		}
	}
	return out, fmt.Errorf("there is no check paths: %+v", report)
}
