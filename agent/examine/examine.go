// Package examine gathers the facts about a host and its part in each network, and has package doctor judge them. An
// Examiner serves a running agent; Offline examines a host on which no agent answers.
package examine

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Timeout bounds an examination. It is less than the time that the API gives a request.
const Timeout = 25 * time.Second

// A Host is what an agent knows about its host at one moment.
type Host struct {
	Node     string
	Config   config.Config
	Health   api.Health
	Networks []Network // in which it takes part
}

// A Network is the host's part in one network.
type Network struct {
	Local      config.Network
	Definition registry.Network // zero if it is not known yet
	Shown      api.Local        // by the API
	TTL        time.Duration    // of the lease

	Held  *registry.Lease // nil if no lease is held
	Lease registry.Lease  // that the datapath was built for: the one that is held, or that an earlier agent held

	Peers []api.Peer // sorted

	// Probe sends packets to peers. Its answers come in their order.
	Probe func(ctx context.Context, peers []api.Peer, r api.ProbeRequest) (api.Probe, error)
}

// An Examiner examines hosts with what it is given. It is safe for concurrent use.
type Examiner struct {
	Registry     Registry
	RegistryName string // "consul at 127.0.0.1:8500"
	Backends     map[string]backend.Type

	// EnsureForwarding reports whether the kernel forwards packets, as forwarding.Switch.Ensure does.
	EnsureForwarding func(subnet netip.Prefix, links []string, set bool) (forwarding.State, error)

	// ReadRules finds rules of this host that block packets, as foreign.Find does.
	ReadRules RuleReader

	// Datagrams reports whether UDP and TCP reach a peer that answers pings, as doctor.Datagrams does.
	Datagrams func(ctx context.Context, own netip.Addr, to netip.Prefix) doctor.Answer
}

// A RuleReader finds rules of this host that block containers' packets, or the datagrams between hosts.
type RuleReader func(context.Context, []foreign.OverlayPath, []foreign.UnderlayPath) (
	[]foreign.Obstacle, []foreign.Blockade, error)

// Examine gathers the facts about a host and returns the findings. Facts that cannot be gathered are reported as
// unknown.
func (e *Examiner) Examine(ctx context.Context, h Host, o api.DoctorOptions) api.Diagnosis {
	began := time.Now()
	facts := doctor.Facts{Node: h.Node, Active: !o.Passive, DataDir: h.Config.DataDir,
		Connections: forwarding.ReadConnections()}
	facts.Capabilities, _ = doctor.MissingCapabilities() // nil if the kernel does not tell
	facts.FlannelChains, _ = foreign.FlannelChains()     // without the right to list them, less is known
	facts.DirsWithoutCNI = missingCNI(os.Getenv, cniDirs(), config.CNIDir)
	for _, c := range h.Health.Checks {
		if c.Name != health.StoreCheck(h.Config.Store()) {
			facts.Health = append(facts.Health, c)
		}
	}
	var names []string
	facts.Networks = make([]doctor.Network, len(h.Networks))
	networkPaths := make([]*paths, len(h.Networks))
	for i, n := range h.Networks {
		names = append(names, n.Local.Name)
		facts.Networks[i], networkPaths[i] = e.networkFacts(n)
	}

	// What takes long happens at the same time. Each goroutine writes fields of its own.
	var work sync.WaitGroup
	work.Go(func() {
		facts.Store = storeFacts(ctx, e.Registry, e.RegistryName, requiredRights(h.Config, h.Node, names))
		facts.Store.Kind = h.Config.Store()
	})
	work.Go(func() { readRules(ctx, e.ReadRules, facts.Networks, networkPaths) })
	inactive := make([]string, len(h.Networks))
	for i, n := range h.Networks {
		f := &facts.Networks[i]
		work.Go(func() { readRecord(ctx, e.Registry, n.Definition, f) })
		if !o.Passive && (o.Network == "" || o.Network == f.Name) && len(f.Subnets) > 0 && f.Backend != "alloc" {
			work.Go(func() { inactive[i] = e.probePeers(ctx, n, f) })
		}
	}
	work.Wait()
	inactive = slices.Compact(slices.DeleteFunc(inactive, func(s string) bool { return s == "" }))
	facts.InactiveReason = strings.Join(inactive, "; ")
	for _, n := range h.Health.Networks {
		if i := slices.Index(names, n.Network); i >= 0 {
			facts.Networks[i].Checks = checksOf(n)
		}
	}
	out := api.Diagnosis{
		Node:     facts.Node,
		Agent:    true,
		Active:   facts.Active && facts.InactiveReason == "",
		Findings: []api.Finding{},
	}
	for _, f := range doctor.Judge(facts) {
		if o.Network == "" || f.Network == "" || f.Network == o.Network {
			out.Findings = append(out.Findings, f)
		}
	}
	out.Took = time.Since(began)
	return out
}

// JudgePaths returns what is wrong with the paths to the peers that were probed, of which answers has the results in
// the same order. If one of them was not reached, it looks for the reason among this host's rules.
func (e *Examiner) JudgePaths(
	ctx context.Context, n Network, probed []api.Peer, answers []api.PeerProbe,
) []api.Finding {
	facts, p := e.networkFacts(n)
	var peers []doctor.Peer
	allReached := true
	for i, peer := range probed[:min(len(probed), len(answers))] {
		at := slices.IndexFunc(n.Peers, func(known api.Peer) bool {
			return known.Node == peer.Node && slices.Equal(known.Subnets, peer.Subnets)
		})
		if at < 0 || at >= len(facts.Peers) {
			continue // it has gone since
		}
		f := facts.Peers[at]
		f.Probe = &answers[i]
		peers, allReached = append(peers, f), allReached && answers[i].Reached
		if f.Skipped == "" {
			facts.Probed++
		}
	}
	facts.Peers = peers
	if !allReached {
		all := []doctor.Network{facts}
		readRules(ctx, e.ReadRules, all, []*paths{p})
		facts = all[0]
	}
	return append([]api.Finding{}, doctor.JudgePaths(facts, forwarding.ReadConnections())...)
}

// checksOf sorts the checks of a network by what the doctor does with them. It drops those of what the doctor examines
// itself.
func checksOf(h api.NetworkHealth) doctor.Checks {
	var out doctor.Checks
	used := map[string]*api.Check{
		health.Network:  &out.Network,
		health.Underlay: &out.Underlay,
		health.Lease:    &out.Lease,
		health.Conflict: &out.Conflict,
		health.Device:   &out.Device,
		health.Routes:   &out.Routes,
	}
	examined := []string{health.Consul, health.Etcd, health.Kubernetes, health.Forwarding, health.ForeignRules,
		health.Paths}
	for _, c := range h.Checks {
		if place := used[c.Name]; place != nil {
			*place = c
		} else if !slices.Contains(examined, c.Name) {
			out.Others = append(out.Others, c)
		}
	}
	return out
}
