package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// mostExamined is how many peers of a network an examination sends packets to: those
// that are held first.
const mostExamined = 64

// answerMS is how long an answer of a peer is waited for, in milliseconds: several
// times what a packet takes around the earth.
const answerMS = 700

// diagnose gathers what is to be known of this host and has it judged. A part that
// fails is told as not known.
func (a *Agent) diagnose(ctx context.Context, o api.DoctorOptions) api.Diagnosis {
	began := time.Now()
	self := a.self()
	facts := doctor.Facts{Node: self.NodeName, Active: !o.Passive}
	facts.Capabilities, _ = doctor.LookCapabilities() // a kernel that does not tell lacks none
	report, _ := a.env.health.Report()
	for _, c := range report.Checks {
		if c.Name != health.Consul {
			facts.Health = append(facts.Health, c)
		}
	}
	var runners []*runner
	for _, name := range self.Networks {
		if run, ok := a.runner(name); ok {
			runners = append(runners, run)
		}
	}
	facts.Networks = make([]doctor.Network, len(runners))
	passages := make([]*passage, len(runners))
	lists := make([][]api.Peer, len(runners))
	for i, run := range runners {
		facts.Networks[i], passages[i], lists[i] = a.networkFacts(run)
	}
	// What takes its time, side by side: each writes fields of its own.
	var work sync.WaitGroup
	work.Go(func() { facts.Store = storeFacts(ctx, a.env.registry, a.o.RegistryName, wish(self, a.current())) })
	work.Go(func() { rulesFacts(ctx, a.o.InTheWay, facts.Networks, passages) })
	inactive := make([]string, len(runners))
	for i, run := range runners {
		n := &facts.Networks[i]
		work.Go(func() { a.recordFacts(ctx, run, n) })
		if !o.Passive && (o.Network == "" || o.Network == n.Name) && len(n.Subnets) > 0 && n.Backend != "alloc" {
			work.Go(func() { inactive[i] = a.askPeers(ctx, run, n, lists[i]) })
		}
	}
	work.Wait()
	facts.Inactive = strings.Join(slices.Compact(slices.DeleteFunc(inactive, func(s string) bool { return s == "" })), "; ")
	for _, h := range report.Networks {
		if i := slices.IndexFunc(facts.Networks, func(n doctor.Network) bool { return n.Name == h.Network }); i >= 0 {
			facts.Networks[i].Checks = checksOf(h)
		}
	}
	out := api.Diagnosis{Node: facts.Node, Agent: true, Active: facts.Active && facts.Inactive == "", Findings: []api.Finding{}}
	for _, f := range doctor.Judge(facts) {
		if o.Network == "" || f.Network == "" || f.Network == o.Network {
			out.Findings = append(out.Findings, f)
		}
	}
	out.Took = time.Since(began)
	return out
}

// wish is what this agent does in the store.
func wish(self api.Self, c config.Config) registry.Wish {
	w := registry.Wish{Node: self.NodeName, Named: c.NodeName != "", Networks: self.Networks, Service: c.Consul.Service}
	for _, n := range c.Networks {
		if len(n.Pools) > 0 {
			w.Defines = append(w.Defines, n.Name)
		}
	}
	return w
}

// storeFacts asks the store whether it can be used, and for what. One without rights
// or probe tells nothing.
func storeFacts(ctx context.Context, reg registry.Registry, name string, w registry.Wish) doctor.Store {
	prober, ok := reg.(registry.Prober)
	if !ok {
		return doctor.Store{}
	}
	out := doctor.Store{Name: name}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out.Err = prober.Probe(call)
	entitled, ok := reg.(registry.Entitled)
	if !ok || out.Err != nil && !errors.Is(out.Err, registry.ErrDenied) {
		return out
	}
	// A network that is there need not be put there.
	w.Defines = slices.DeleteFunc(slices.Clone(w.Defines), func(name string) bool {
		_, err := reg.Network(call, name)
		return !errors.Is(err, registry.ErrNetworkNotFound)
	})
	out.Rights, out.RightsErr = entitled.Rights(call, w)
	return out
}

// checksOf sorts what health says of a network: what the doctor looks at itself is
// not told again.
func checksOf(h api.NetworkHealth) doctor.Checks {
	var out doctor.Checks
	for _, c := range h.Checks {
		switch c.Name {
		case health.Network:
			out.Network = c
		case health.Underlay:
			out.Underlay = c
		case health.Lease:
			out.Lease = c
		case health.Conflict:
			out.Conflict = c
		case health.Device:
			out.Device = c
		case health.Routes:
			out.Routes = c
		case health.Consul, health.Forwarding, health.ForeignRules:
		default:
			out.Others = append(out.Others, c)
		}
	}
	return out
}

// networkFacts is what is to be seen of one network at once, and its peers.
func (a *Agent) networkFacts(r *runner) (doctor.Network, *passage, []api.Peer) {
	v := r.shown()
	definition, lease := v.definition, registry.Lease{}
	held, ok, _ := r.lease.Get()
	if ok {
		lease = held
	}
	if before, carried := r.carriedOn(); carried {
		definition, lease = before.network, before.own
	}
	kind := a.env.backends[definition.Backend.Type]
	n := doctor.Network{Name: r.local.Name, Backend: definition.Backend.Type, Pools: definition.Plan.Prefixes(), Subnets: lease.Subnets, MTU: v.local.MTU, Link: v.local.Link,
		Underlay: doctor.Underlay{Interface: v.local.Underlay.Interface, MTU: v.local.Underlay.MTU, Public: v.local.Underlay.Addresses, Own: v.local.Underlay.Own}}
	if len(n.Underlay.Own) == 0 {
		n.Underlay.Own = n.Underlay.Public
	}
	n.Lease = doctor.Lease{Held: ok, Mine: held, Renewed: v.local.Renewed, TTL: r.config.Lease.TTL, Now: time.Now()}
	if n.Backend == "" {
		return n, nil, nil // nothing is known of it yet, and health says why
	}
	n.See(kind.Device, definition.Backend.Type == "udp", definition.Plan)
	list := r.peerList().Peers
	n.Port, n.Same = carrierPort(definition.Backend)
	n.Peers = peerFacts(n, definition.Backend, list)
	if len(n.Subnets) == 0 || n.Backend == "alloc" {
		return n, nil, list
	}
	return n, passageOf(definition, firewallNetwork(r.local, n.Pools, n.Subnets), &n, a.env.ensureForwarding), list
}

// recordFacts is what the store has of this host's lease.
func (a *Agent) recordFacts(ctx context.Context, r *runner, n *doctor.Network) {
	if !n.Lease.Held || n.Backend == "" {
		return
	}
	definition := r.shown().definition
	if before, carried := r.carriedOn(); carried {
		definition = before.network
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	record, _, err := a.env.registry.WatchLease(call, definition, n.Lease.Mine.Subnet(), 0)
	n.Lease.Recorded(record, err)
}

// carrierPort is the UDP port that the backend's packets go to, 0 for none, and
// whether they are sent from it, too.
func carrierPort(b registry.Backend) (port int, same bool) {
	var o struct {
		Port int `json:"port"`
	}
	_ = json.Unmarshal(b.Object, &o) // broken options are reported where they are used
	return o.Port, b.Type == "udp"
}

// peerFacts are the peers, and what of theirs the kernel would refuse.
func peerFacts(n doctor.Network, b registry.Backend, list []api.Peer) []doctor.Peer {
	var out []doctor.Peer
	links := backend.Arrivals(n.Name, b.Type, b.Object, n.Underlay.Interface)
	for i, p := range list {
		peer := doctor.Peer{Node: p.Node, Held: p.Held, Skipped: p.Skipped, Subnets: p.Subnets}
		if len(n.Underlay.Public) > 0 {
			peer.Public, _ = backend.Peer{PublicIPs: p.PublicIPs}.Outer(n.Underlay.Public[0])
		}
		if i < mostExamined && peer.Skipped == "" && peer.Public.IsValid() && len(n.Underlay.Own) > 0 {
			peer.See(n, links)
		}
		out = append(out, peer)
	}
	return out
}

// askPeers sends packets to the peers of list, which are n's, that are in the
// datapath.
func (a *Agent) askPeers(ctx context.Context, r *runner, n *doctor.Network, list []api.Peer) (inactive string) {
	var places []int // in list, of those who are asked
	for i, p := range list {
		if p.Skipped == "" {
			places = append(places, i)
		}
	}
	slices.SortStableFunc(places, func(x, y int) int {
		return map[bool]int{true: 0, false: 1}[list[x].Held] - map[bool]int{true: 0, false: 1}[list[y].Held]
	})
	places = places[:min(len(places), mostExamined)]
	if len(places) == 0 {
		return ""
	}
	asked := make([]api.Peer, len(places))
	for i, place := range places {
		asked[i] = list[place]
	}
	answers, err := a.askTwice(ctx, r, asked, !n.Device.Wanted)
	var refused *api.Error
	switch {
	case errors.As(err, &refused) && refused.Code == http.StatusConflict:
		return refused.Message
	case err != nil:
		return err.Error()
	}
	var work sync.WaitGroup
	for i, answer := range answers {
		peer := &n.Peers[places[i]]
		n.Asked++
		peer.Probe = &answer
		if n.Device.Exists && answer.Reached && len(answer.Ways) > 0 {
			work.Go(func() {
				peer.Datagrams = a.o.Datagrams(ctx, answer.Ways[0].From, overlaySubnet(*peer, answer.Ways[0].To))
			})
		}
	}
	work.Wait()
	return ""
}

// errorPause is after what a kernel tells of an error again (icmp_ratelimit).
const errorPause = 1200 * time.Millisecond

// askTwice probes peers, whose answers come in their order. Where no device has their
// addresses (unheld), what they answer with is an error, of which their kernels send
// few: those that were silent are asked once more.
func (a *Agent) askTwice(ctx context.Context, r *runner, peers []api.Peer, unheld bool) ([]api.PeerProbe, error) {
	request := api.ProbeRequest{TimeoutMS: answerMS}
	out, err := a.probe(ctx, r, peers, request)
	var silent []int
	for i, p := range out.Peers {
		if !p.Reached && unheld {
			silent = append(silent, i)
		}
	}
	if err != nil || len(silent) == 0 || retry.Sleep(ctx, errorPause) != nil {
		return out.Peers, err
	}
	once := make([]api.Peer, len(silent))
	for i, place := range silent {
		once[i] = peers[place]
	}
	again, err := a.probe(ctx, r, once, request)
	for i, p := range again.Peers {
		if p.Reached {
			out.Peers[silent[i]] = p
		}
	}
	return out.Peers, err
}
