package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

const (
	// announceEvery bounds how long a catalogue that forgot us stays wrong.
	announceEvery = 30 * time.Second
	// announceSettle gathers changes of health that come together.
	announceSettle = time.Second
	// announceSpread is within what all hosts register again after the store was
	// set back, or away.
	announceSpread = 3 * time.Second
	// withdrawTimeout bounds how long a store that hangs delays the end of an agent:
	// whoever stops it waits for that.
	withdrawTimeout = 2 * time.Second
)

// announce keeps the agent in the catalogue, where the store has one, until ctx
// ends. An agent that is killed stays there: its check says so, and the next start
// finds it. But see withdraw.
func (a *Agent) announce(ctx context.Context, address net.Addr) {
	announcer, ok := a.env.registry.(registry.Announcer)
	if !ok {
		return
	}
	backoff := a.env.outage.NewLoop()
	entry := catalogueEntry{agent: a, announcer: announcer, address: address}
	_, _, setBack := a.env.setBack.Get()
	back := a.env.outage.Returned()
	again := ""
	for {
		select {
		case <-setBack:
			_, _, setBack = a.env.setBack.Get()
			again = time.Now().UTC().Format(time.RFC3339)
		default:
		}
		report, changed := a.env.health.Report()
		err := entry.renew(ctx, verdict(report), again)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			a.log.Debug("service could not be registered, trying again", "error", err)
			if backoff.Wait(ctx, err, nil) != nil {
				return
			}
			continue
		}
		timer := time.NewTimer(announceEvery)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-back:
			back = a.env.outage.Returned() // it may have forgotten us
			if retry.Sleep(ctx, rand.N(announceSpread)) != nil {
				timer.Stop()
				return
			}
		case <-setBack:
			// With many hosts, each write counts for the store.
			if retry.Sleep(ctx, rand.N(announceSpread)) != nil {
				timer.Stop()
				return
			}
		case <-changed:
			if retry.Sleep(ctx, announceSettle) != nil {
				timer.Stop()
				return
			}
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// catalogueEntry is what the catalogue has of this agent.
type catalogueEntry struct {
	agent     *Agent
	announcer registry.Announcer
	address   net.Addr
	shown     string // the name it is there by, "" for not at all
	cleared   bool   // of doubles
}

// renew puts it there, under the name that is configured now.
func (e *catalogueEntry) renew(ctx context.Context, v registry.Verdict, again string) error {
	a := e.agent
	name := a.current().Consul.Service
	if e.shown != "" && e.shown != name { // a reload changed it, or turned it off
		call, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		if err := e.announcer.Withdraw(call, registry.Service{Name: e.shown, ID: serviceID(e.shown, a.self().NodeName)}); err != nil {
			return err
		}
		a.log.Info("service withdrawn", "service", e.shown)
		e.shown, e.cleared = "", false
	}
	if name == "" {
		return nil
	}
	s, err := a.service(ctx, e.address)
	if err != nil || !s.Address.IsValid() { // known once the first network found its underlay
		return err
	}
	s.Again = again
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err = e.announcer.Announce(call, s, v); err == nil {
		e.shown = s.Name
	}
	if err == nil && !e.cleared {
		err = a.withdrawDoubles(call, e.announcer, s)
		e.cleared = err == nil
	}
	a.env.telemetry.Count(telemetry.ServiceRegistrations, 1, telemetry.Result(err))
	return err
}

// withdrawDoubles takes away what this agent was shown as under another name of
// its host or of the service.
func (a *Agent) withdrawDoubles(ctx context.Context, announcer registry.Announcer, s registry.Service) error {
	doubles, err := announcer.Doubles(ctx, s, nodeIDMeta)
	for _, d := range doubles {
		if err := announcer.Withdraw(ctx, d); err != nil {
			return err
		}
		a.log.Info("service of an earlier name withdrawn", "service", d.Name, "id", d.ID)
	}
	return err
}

// withdraw takes the agent out of the catalogue when it was asked to stop, or
// leaves for good as far as its configuration knows. One that ends by a fault
// stays, and its check says so. The store may be away: nobody waits long.
func (a *Agent) withdraw(ctx context.Context, asked bool) {
	c := a.current()
	announcer, ok := a.env.registry.(registry.Announcer)
	if !ok || c.Consul.Service == "" || !asked && !c.Lease.ReleaseOnStop {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	s := registry.Service{Name: c.Consul.Service, ID: serviceID(c.Consul.Service, a.self().NodeName)}
	if err := announcer.Withdraw(ctx, s); err != nil {
		a.log.Warn("service stays in the catalogue, and its check fails", "service", s.Name, "id", s.ID, "error", err)
	}
}

// serviceID is unique where several hosts use one Consul agent.
func serviceID(service, node string) string { return service + "-" + node }

// service describes this agent to the catalogue. The store polls /healthz when
// its own agent is on this host and the API listens on TCP; else it is fed.
func (a *Agent) service(ctx context.Context, address net.Addr) (registry.Service, error) {
	c, self := a.current(), a.self()
	s := registry.Service{Name: c.Consul.Service, ID: serviceID(c.Consul.Service, self.NodeName)}
	var parts []membership
	for _, name := range self.Networks {
		run, ok := a.runner(name)
		if !ok {
			continue
		}
		if lease, has := run.carries(); has {
			parts = append(parts, membership{name, lease.Backend.Type, lease.Subnets})
		}
		if addrs := run.shown().local.Underlay.Addresses; len(addrs) > 0 && !s.Address.IsValid() {
			s.Address = addrs[0]
		}
	}
	s.Tags, s.Meta = catalogued(parts)
	s.Meta[versionMeta], s.Meta[nodeMeta], s.Meta[nodeIDMeta] = self.Version, self.NodeName, self.NodeID
	tcp, ok := address.(*net.TCPAddr)
	if !ok {
		return s, nil
	}
	s.Port = tcp.Port
	namer, ok := a.env.registry.(registry.NodeNamer)
	if !ok {
		return s, nil
	}
	here, err := namer.NodeName(ctx)
	if err != nil || here == "" {
		return s, err
	}
	if c.HTTP.TLS.CertFile != "" {
		return s, nil // the store could not verify our certificate: feed it
	}
	s.HealthURL = fmt.Sprintf("http://%s/healthz", reachable(tcp))
	return s, nil
}

// reachable is the listener's address as a program on this host dials it.
func reachable(tcp *net.TCPAddr) netip.AddrPort {
	ap := tcp.AddrPort()
	if ap.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), ap.Port())
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// verdict is health in the catalogue's words.
func verdict(h api.Health) registry.Verdict {
	var lines []string
	add := func(network string, checks []api.Check) {
		for _, c := range checks {
			if c.Status != api.Passing {
				lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s: %s", network, c.Name, c.Reason)))
			}
		}
	}
	add("", h.Checks)
	for _, n := range h.Networks {
		add(n.Network, n.Checks)
	}
	if len(lines) == 0 {
		lines = []string{"all checks are passing"}
	}
	return registry.Verdict{Status: h.Status, Output: strings.Join(lines, "\n")}
}

// notifySystemd tells systemd when every network is ready, and the state in
// between. Without systemd it does nothing.
func (a *Agent) notifySystemd(ctx context.Context) error {
	ready := false
	for {
		report, changed := a.env.health.Report()
		message := daemon.SdNotifyReady
		switch {
		case ready || !report.Ready:
			message = ""
		default:
			ready = true
			a.log.Info("ready")
		}
		status := "STATUS=" + strings.ReplaceAll(verdict(report).Output, "\n", "; ")
		if err := notify(message, status); err != nil {
			a.log.Warn("systemd could not be told", "error", err)
		}
		select {
		case <-changed:
			if retry.Sleep(ctx, 50*time.Millisecond) == nil {
				continue
			}
		case <-ctx.Done():
		}
		if err := notify(daemon.SdNotifyStopping); err != nil {
			a.log.Warn("systemd could not be told", "error", err)
		}
		return ctx.Err()
	}
}

func notify(lines ...string) error {
	var said []string
	for _, line := range lines {
		if line != "" {
			said = append(said, line)
		}
	}
	_, err := daemon.SdNotify(false, strings.Join(said, "\n"))
	return err
}
