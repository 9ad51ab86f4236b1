package restarts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

// A Way is one way of restarting an agent.
type Way struct {
	Name string
	// Kinds are the variants that rounds use in turn: round i uses the one at i modulo their
	// number.
	Kinds []string

	// end ends what runs, with the number of the round. start starts it again and waits until it is
	// ready.
	end   func(ctx context.Context, s *Site, round int, kind string) error
	start func(ctx context.Context, s *Site, kind string) error
}

// Ways returns all ways for a backend.
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

// ConsulAway stops Consul when the agent ends, and starts it some time after the agent. It takes
// seconds per round.
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
			// Long enough for the agent to try and fail.
			return errors.Join(lab.Sleep(ctx, time.Second), s.Consul.Start(ctx), s.Host.WaitReady(ctx))
		},
	}
}

// either ends the agent with SIGTERM and SIGKILL in turn.
func either(ctx context.Context, s *Site, round int, _ string) error {
	if round%2 == 1 {
		return s.Host.KillAgent()
	}
	return s.Host.StopAgent(ctx)
}

func begin(ctx context.Context, s *Site, _ string) error {
	return errors.Join(s.Host.RestartAgent(), s.Host.WaitReady(ctx))
}

// after returns a start that calls what first.
func after(what func(context.Context, *Site, string) error) func(context.Context, *Site, string) error {
	return func(ctx context.Context, s *Site, kind string) error {
		if err := what(ctx, s, kind); err != nil {
			return err
		}
		return begin(ctx, s, kind)
	}
}

// falters is how often an agent is killed before one may live, and how long after its start it is
// killed at most, which is about the time that a start takes.
const (
	falters   = 5
	falterFor = 150 * time.Millisecond
)

// falter starts agents and kills them at random moments.
func falter(ctx context.Context, s *Site, kind string) error {
	for range falters {
		if kind == "state lost" {
			if err := os.RemoveAll(s.Host.DataDir()); err != nil {
				return err
			}
		}
		if err := errors.Join(s.Host.RestartAgent(), lab.Sleep(ctx, rand.N(falterFor)), s.Host.KillAgent()); err != nil {
			return err
		}
	}
	return nil
}

// endAll ends the agents of both hosts, and Consul if the kind says so.
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

// Replacement alternates between two versions of leno: first the binary older, then the lab's own,
// and so on.
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

// reconfigure changes a setting in the configuration, or changes it back.
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

// losses are the ways in which state is lost: the whole directory, or one of its files that is
// missing, empty, truncated, or of a future version. The most revealing ones come first.
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
