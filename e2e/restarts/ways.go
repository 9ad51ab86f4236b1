package restarts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lenonet/leno/e2e/lab"
)

// Way is one way of restarting an agent.
type Way struct {
	Name string
	// Kinds names what rounds do in turn: round i the one at i modulo their number.
	Kinds []string

	between func(ctx context.Context, s *Site, kind string) error // while no agent runs, nil for nothing
	kill    func(round int) bool                                  // with SIGKILL, or SIGTERM
}

// Ways are all there are for a backend.
func Ways(backend string) []Way {
	configurations := []string{"log_level", "lease.ttl", "ip_masq", "subnet_file", "another network"}
	if backend == "vxlan" {
		configurations = append(configurations, "direct_routing")
	}
	either := func(round int) bool { return round%2 == 1 }
	return []Way{
		{Name: "SIGTERM", Kinds: []string{""}, kill: func(int) bool { return false }},
		{Name: "kill -9", Kinds: []string{""}, kill: func(int) bool { return true }},
		{Name: "newer configuration", Kinds: configurations, between: reconfigure, kill: either},
		{Name: "state lost", Kinds: losses, between: lose, kill: either},
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

// end ends the agent, by the round's signal.
func (w Way) end(ctx context.Context, h *lab.Host, round int) error {
	if w.kill(round) {
		return h.KillAgent()
	}
	return h.StopAgent(ctx)
}
