package restarts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// Way is one way of restarting an agent.
type Way struct {
	Name string
	// Kinds names what rounds do in turn: round i the one at i modulo their number.
	Kinds []string

	// end ends what runs, by the number of the round, and start starts it again and
	// waits until it is ready.
	end   func(ctx context.Context, s *Site, round int, kind string) error
	start func(ctx context.Context, s *Site, kind string) error
}

// Ways are all there are for a backend.
func Ways(backend string) []Way {
	configurations := []string{"log_level", "lease.ttl", "ip_masq", "subnet_file", "another network", "node_name"}
	if backend == "vxlan" {
		configurations = append(configurations, "direct_routing")
	}
	return []Way{
		{Name: "SIGTERM", Kinds: []string{""}, start: begin,
			end: func(ctx context.Context, s *Site, _ int, _ string) error { return s.Host.StopAgent(ctx) }},
		{Name: "kill -9", Kinds: []string{""}, start: begin,
			end: func(_ context.Context, s *Site, _ int, _ string) error { return s.Host.KillAgent() }},
		{Name: "newer configuration", Kinds: configurations, end: either, start: after(reconfigure)},
		{Name: "state lost", Kinds: losses, end: either, start: after(lose)},
		{Name: "killed while starting", Kinds: []string{"", "state lost"}, end: either, start: after(falter)},
		{Name: "all at once", Kinds: []string{"", "and Consul"}, end: endAll, start: startAll},
	}
}

// ConsulAway has Consul stopped when the agent ends, and started again some time
// after the agent was. It takes seconds a round.
func ConsulAway() Way {
	return Way{
		Name: "Consul away", Kinds: []string{"", "state lost"},
		end: func(ctx context.Context, s *Site, round int, kind string) error {
			return errors.Join(s.Consul.Stop(ctx), either(ctx, s, round, kind))
		},
		start: func(ctx context.Context, s *Site, kind string) error {
			if kind == "state lost" {
				if err := lose(ctx, s, "directory and subnet file"); err != nil {
					return err
				}
			}
			if err := s.Host.RestartAgent(); err != nil {
				return err
			}
			// As long as it takes to try, and to fail.
			return errors.Join(pause(ctx, time.Second), s.Consul.Start(ctx), s.Host.WaitReady(ctx))
		},
	}
}

// either ends the agent by SIGTERM, and every other time by SIGKILL.
func either(ctx context.Context, s *Site, round int, _ string) error {
	if round%2 == 1 {
		return s.Host.KillAgent()
	}
	return s.Host.StopAgent(ctx)
}

func begin(ctx context.Context, s *Site, _ string) error {
	return errors.Join(s.Host.RestartAgent(), s.Host.WaitReady(ctx))
}

// after is a start with something done before it.
func after(what func(context.Context, *Site, string) error) func(context.Context, *Site, string) error {
	return func(ctx context.Context, s *Site, kind string) error {
		if err := what(ctx, s, kind); err != nil {
			return err
		}
		return begin(ctx, s, kind)
	}
}

// falters is how often an agent is killed before one is let live, within how long
// after its start: that is about how long a start takes.
const (
	falters   = 5
	falterFor = 150 * time.Millisecond
)

// falter starts agents and kills them at moments of chance.
func falter(ctx context.Context, s *Site, kind string) error {
	for range falters {
		if kind == "state lost" {
			if err := os.RemoveAll(s.Host.DataDir()); err != nil {
				return err
			}
		}
		if err := errors.Join(s.Host.RestartAgent(), pause(ctx, rand.N(falterFor)), s.Host.KillAgent()); err != nil {
			return err
		}
	}
	return nil
}

// endAll ends the agents of both hosts, and Consul where the kind says so.
func endAll(ctx context.Context, s *Site, round int, kind string) error {
	err := errors.Join(either(ctx, s, round, kind), s.Peer.KillAgent())
	if kind == "and Consul" {
		err = errors.Join(err, s.Consul.Stop(ctx))
	}
	return err
}

func startAll(ctx context.Context, s *Site, kind string) error {
	err := errors.Join(s.Host.RestartAgent(), s.Peer.RestartAgent())
	if err == nil && kind == "and Consul" {
		err = s.Consul.Start(ctx)
	}
	if err != nil {
		return err
	}
	return errors.Join(s.Host.WaitReady(ctx), s.Peer.WaitReady(ctx))
}

// Replacement goes to another version of leno and back: first to the binary older,
// then to the lab's own, and so on.
func Replacement(older string) Way {
	return Way{
		Name: "another version", Kinds: []string{"to the older", "to the newer"},
		end: func(ctx context.Context, s *Site, round int, kind string) error { return either(ctx, s, round/2, kind) },
		start: after(func(_ context.Context, s *Site, kind string) error {
			if s.Host.Program = ""; kind == "to the older" {
				s.Host.Program = older
			}
			return nil
		}),
	}
}

// reconfigure says something else in the configuration, or what it was before.
func reconfigure(ctx context.Context, s *Site, what string) error {
	o := &s.mine
	switch what {
	case "log_level":
		o.quiet = !o.quiet
	case "lease.ttl":
		o.short = !o.short
	case "ip_masq":
		o.unmasked = !o.unmasked
	case "subnet_file":
		o.elsewhere = !o.elsewhere
	case "another network":
		o.further = !o.further
	case "node_name":
		o.renamed = !o.renamed
	case "direct_routing":
		o.directly = !o.directly
		return s.define(ctx, s.Peer, fmt.Sprintf(" direct_routing = %t ", o.directly))
	}
	return os.WriteFile(s.Host.ConfigFile(), []byte(s.config(s.Host, *o)), 0o644)
}

// losses are the ways in which state is lost: the whole directory, or one of its
// files that is gone, empty, cut short, or of a leno to come. Those that tell most
// come first.
var losses = []string{
	"directory", "directory and subnet file",
	"node-id cut short", "default.json cut short", "peers/default.json cut short",
	"node-id and default.json gone",
	"default.json newer", "peers/default.json newer",
	"node-id gone", "default.json gone", "peers/default.json gone",
	"node-id empty", "default.json empty",
}

func lose(_ context.Context, s *Site, what string) error {
	dir := s.Host.DataDir()
	var name, how string
	switch what {
	case "directory":
		return os.RemoveAll(dir)
	case "directory and subnet file":
		return errors.Join(os.RemoveAll(dir), os.Remove(s.subnetFile()))
	case "node-id and default.json gone":
		return errors.Join(os.Remove(filepath.Join(dir, "node-id")), os.Remove(filepath.Join(dir, "default.json")))
	}
	if _, err := fmt.Sscanf(what, "%s %s", &name, &how); err != nil {
		return err
	}
	path := filepath.Join(dir, name)
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	switch how {
	case "gone":
		return os.Remove(path)
	case "empty":
		data = nil
	case "cut":
		data = data[:len(data)/2]
	case "newer":
		data = []byte(`{"version":99,"network":"default","subnets":"elsewhere"}`)
	}
	return os.WriteFile(path, data, 0o600)
}
