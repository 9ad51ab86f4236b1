// Package catalog keeps an agent registered as a service in the catalogue of its store. It decides when to register and
// what the entry says. How a catalogue stores it is the registry's business.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

const (
	// refreshInterval bounds how long the entry is missing after the catalogue lost it.
	refreshInterval = 30 * time.Second
	// settleTime collects changes of health that come together.
	settleTime = time.Second
	// spread is the time within which all hosts register again after an outage, or after the store was set back. With
	// many hosts, every write counts.
	spread = 3 * time.Second
	// withdrawTimeout bounds how long a store that hangs delays the end of an agent.
	withdrawTimeout = 2 * time.Second
)

// A Description is what an agent says about itself.
type Description struct {
	Service     string // name in the catalogue, for example "leno"; "" for no entry
	Node        string // name of the host
	NodeID      string
	Version     string     // of the agent
	Address     netip.Addr // of the host; invalid until the first network has found its underlay
	Memberships []Membership
	TLS         bool // the API has a certificate that the store cannot verify
}

// A Registration keeps the entry of one agent up to date. Its fields must be set before the first use; those that may
// be nil say so. Run and Withdraw must be called by one goroutine.
type Registration struct {
	Log      hclog.Logger
	Catalog  registry.Catalog
	Listener net.Addr // of the agent's HTTP API
	Describe func() Description
	Health   func() (report api.Health, changed <-chan struct{})
	Outage   *retry.OutageDetector
	SetBack  *watch.Value[struct{}] // set when the store, and its catalogue, lost something
	Count    func(err error)        // called after each attempt to update the entry

	// LocalNode returns the store's name of this host, "" if the store's own agent runs elsewhere. It is nil if the
	// store has no such agent.
	LocalNode func(ctx context.Context) (string, error)

	name         string // of the entry, "" for none
	deduplicated bool   // the entries under earlier names are gone

	notPolled time.Time // when the first of the last polls failed, zero if the catalogue can poll the API
	feeds     bool      // the catalogue cannot poll the API
}

// ServiceID returns the ID of the service of a host, which is unique where several hosts use one Consul agent.
func ServiceID(service, node string) string { return service + "-" + node }

// Run keeps the entry up to date until ctx ends. The entry stays then. If the agent was killed, its check fails, and
// the next agent takes the entry over.
func (r *Registration) Run(ctx context.Context) {
	backoff := r.Outage.NewLoop()
	_, _, setBack := r.SetBack.Get()
	returned := r.Outage.Returned()
	epoch, denied := "", false // denied: the log says so
	for {
		select {
		case <-setBack:
			_, _, setBack = r.SetBack.Get()
			epoch = time.Now().UTC().Format(time.RFC3339)
		default:
		}
		report, changed := r.Health()
		verdict := registry.Verdict{Status: report.Status, Output: health.Describe(report)}
		err := r.register(ctx, verdict, epoch)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			denied = false
		case errors.Is(err, registry.ErrDenied) && !denied:
			denied = true
			r.Log.Warn("service in the catalogue cannot be updated", "error", err) // which says what was denied
		default:
			r.Log.Debug("service could not be registered, trying again", "error", err)
		}
		if err != nil {
			r.Count(err)
			if backoff.Wait(ctx, err, nil) != nil {
				return
			}
			continue
		}
		pause := time.Duration(0)
		select {
		case <-ctx.Done():
		case <-time.After(refreshInterval):
		case <-returned: // the catalogue may have lost the entry
			returned, pause = r.Outage.Returned(), rand.N(spread)
		case <-setBack:
			pause = rand.N(spread)
		case <-changed:
			pause = settleTime
		}
		if retry.Sleep(ctx, pause) != nil || ctx.Err() != nil {
			return
		}
	}
}

// Withdraw removes the entry, for an agent that stops on purpose. If the store does not answer in time, the entry stays
// and its check fails.
func (r *Registration) Withdraw(ctx context.Context) {
	d := r.Describe()
	if d.Service == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	s := registry.Service{Name: d.Service, ID: ServiceID(d.Service, d.Node)}
	if err := r.Catalog.Withdraw(ctx, s); err != nil {
		r.Log.Warn("service stays in the catalogue, and its check fails", "service", s.Name, "id", s.ID, "error", err)
	}
}

// register registers the service under its current name, and counts that.
func (r *Registration) register(ctx context.Context, v registry.Verdict, epoch string) error {
	d := r.Describe()
	if r.name != "" && r.name != d.Service { // a reload changed the name, or turned the service off
		call, cancel := context.WithTimeout(ctx, retry.CallTimeout)
		defer cancel()
		old := registry.Service{Name: r.name, ID: ServiceID(r.name, d.Node)}
		if err := r.Catalog.Withdraw(call, old); err != nil {
			return err
		}
		r.Log.Info("service withdrawn", "service", r.name)
		r.name, r.deduplicated = "", false
	}
	if d.Service == "" {
		return nil
	}
	s, err := r.service(ctx, d)
	if err != nil || !s.Address.IsValid() {
		return err
	}
	s.Epoch = epoch
	call, cancel := context.WithTimeout(ctx, retry.CallTimeout)
	defer cancel()
	if err := r.announce(call, s, v); err != nil {
		return err
	}
	r.name = s.Name
	if !r.deduplicated {
		if err := r.withdrawDuplicates(call, s); err != nil {
			return err
		}
		r.deduplicated = true
	}
	r.Count(nil)
	return nil
}

// announce shows the service. If the catalogue cannot poll the API for some time, as where Consul runs in a container
// with a network of its own, every registration reports the health from then on. A single failure may be from before
// this process.
func (r *Registration) announce(ctx context.Context, s registry.Service, v registry.Verdict) error {
	if r.feeds {
		s.HealthURL = ""
	}
	err := r.Catalog.Announce(ctx, s, v)
	if !errors.Is(err, registry.ErrNotPolled) {
		r.notPolled = time.Time{}
		return err
	}
	if r.notPolled.IsZero() {
		r.notPolled = time.Now()
	}
	if time.Since(r.notPolled) < refreshInterval {
		return nil
	}
	r.Log.Warn("the store cannot poll the agent's health, so the agent reports it from now on; "+
		"Consul may be in a container with a network of its own", "url", s.HealthURL, "error", err)
	r.feeds = true
	s.HealthURL = ""
	return r.Catalog.Announce(ctx, s, v)
}

// withdrawDuplicates removes the entries of this agent from when its host or its service had another name.
func (r *Registration) withdrawDuplicates(ctx context.Context, s registry.Service) error {
	duplicates, err := r.Catalog.Duplicates(ctx, s, NodeIDMeta)
	for _, d := range duplicates {
		if err := r.Catalog.Withdraw(ctx, d); err != nil {
			return err
		}
		r.Log.Info("service of an earlier name withdrawn", "service", d.Name, "id", d.ID)
	}
	return err
}

// service returns the entry. The store polls /healthz as text if its own agent is known to be on this host and can
// verify the API. Otherwise every registration reports the health.
func (r *Registration) service(ctx context.Context, d Description) (registry.Service, error) {
	s := registry.Service{Name: d.Service, ID: ServiceID(d.Service, d.Node), Address: d.Address}
	s.Tags, s.Meta = tagsAndMeta(d.Memberships)
	s.Meta[versionMeta], s.Meta[nodeMeta], s.Meta[NodeIDMeta] = d.Version, d.Node, d.NodeID
	tcp, ok := r.Listener.(*net.TCPAddr)
	if !ok {
		return s, nil
	}
	s.Port = tcp.Port
	if d.TLS || r.LocalNode == nil {
		return s, nil
	}
	local, err := r.LocalNode(ctx)
	if errors.Is(err, registry.ErrDenied) {
		return s, nil // with node_name, a host needs no right to read the store's name of it
	}
	if err == nil && local != "" {
		s.HealthURL = fmt.Sprintf("http://%s/healthz?format=text", dialable(tcp))
	}
	return s, err
}

// dialable returns the address at which a program on this host reaches a listener.
func dialable(tcp *net.TCPAddr) netip.AddrPort {
	ap := tcp.AddrPort()
	if ap.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), ap.Port())
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
