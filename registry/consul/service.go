package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// The service's check. The TTL is twice the 30 s after which agents announce themselves again.
const (
	checkInterval = "10s"
	checkTimeout  = "5s"
	checkTTL      = "60s"
	ttlNotes      = "fed by the leno agent itself"
	epochMeta     = "registered_again"
)

// Announce makes the services of the local Consul agent show s with the verdict v. The check polls s.HealthURL;
// without a URL it is a TTL check that every call feeds with v. A `consul agent -dev` forgets services at a restart,
// and any program may deregister them, so each call reads first. When a restore removes the service from the servers,
// the local agent does not notice for up to two minutes, unless service and check differ from those it has: s.Epoch is
// part of both. The error wraps registry.ErrNotPolled if the service is registered and the last poll got no answer.
//
// Behind a balancer, the service stays at the Consul agent that has it already.
func (a consulAgent) Announce(ctx context.Context, s registry.Service, v registry.Verdict) error {
	wanted := registration(s, v)
	tok, err := a.kv.token.current(ctx)
	if err != nil {
		return fmt.Errorf("announce service %s: %w", s.ID, classify(err))
	}
	for attempt := 1; ; attempt++ {
		missing := false
		err := a.onNewConnection(func(a consulAgent) (err error) {
			exists, check, err := a.announced(ctx, wanted)
			if err != nil {
				return fmt.Errorf("announce service %s: %w", s.ID, err)
			}
			if missing = !exists && attempt < attempts; missing {
				return nil
			}
			return a.announceHere(ctx, wanted, check, v, tok)
		})
		if !missing {
			return err
		}
	}
}

// announceHere makes the Consul agent show the service. check is nil if the agent does not show it as wanted.
func (a consulAgent) announceHere(ctx context.Context, wanted *api.AgentServiceRegistration, check *api.AgentCheck,
	v registry.Verdict, tok string) error {
	id := wanted.ID
	if check == nil || a.isStale(id, tok) {
		opts, cancel := a.kv.query(ctx, read{})
		defer cancel()
		replace := api.ServiceRegisterOpts{ReplaceExistingChecks: true}.WithContext(opts.Context())
		err := a.kv.api.Agent().ServiceRegisterOpts(wanted, replace)
		if err != nil {
			return fmt.Errorf("register service %s: %w", id, classify(err))
		}
		a.tokens.Store(id, tok)
		if check == nil {
			a.kv.logger.Info("service registered", "service", wanted.Name, "id", id)
		}
	}
	if wanted.Check.TTL == "" {
		return pollError(check)
	}
	opts, cancel := a.kv.query(ctx, read{})
	defer cancel()
	if err := a.kv.api.Agent().UpdateTTLOpts(wanted.Check.CheckID, v.Output, v.Status, opts); err != nil {
		return fmt.Errorf("feed check of service %s: %w", id, classify(err))
	}
	return nil
}

// isStale reports whether the local Consul agent has a service under a token that was replaced since: it uses the token
// of the registration to tell the servers about the service, and that token may be deleted. The tokens of earlier
// processes are not known. If they came from a login, they have been logged out.
func (a consulAgent) isStale(id, tok string) bool {
	before, known := a.tokens.Load(id)
	return known && before != tok || !known && a.kv.token.hasLogin()
}

// Withdraw removes the service from the Consul agent that has it; if it is absent, that is no error.
func (a consulAgent) Withdraw(ctx context.Context, s registry.Service) error {
	for range attempts {
		err := a.onNewConnection(func(a consulAgent) error {
			opts, cancel := a.kv.query(ctx, read{})
			defer cancel()
			return a.kv.api.Agent().ServiceDeregisterOpts(s.ID, opts)
		})
		if err == nil {
			return nil
		}
		if !isNotFound(err) {
			return fmt.Errorf("deregister service %s: %w", s.ID, classify(err))
		}
	}
	return nil
}

// Duplicates returns the services of the local Consul agent that have the same value of one Meta entry as s under
// another ID.
func (a consulAgent) Duplicates(ctx context.Context, s registry.Service, meta string) ([]registry.Service, error) {
	opts, cancel := a.kv.query(ctx, read{})
	defer cancel()
	filter := fmt.Sprintf("Meta[%q] == %q and ID != %q", meta, s.Meta[meta], s.ID)
	found, err := a.kv.api.Agent().ServicesWithFilterOpts(filter, opts)
	if err != nil {
		return nil, fmt.Errorf("list services: %w", classify(err))
	}
	var out []registry.Service
	for _, id := range slices.Sorted(maps.Keys(found)) {
		out = append(out, serviceOf(found[id]))
	}
	return out, nil
}

// RegisteredService returns the service with the given ID as a Consul agent that the client reaches has it, and false when
// none has it.
func (a consulAgent) RegisteredService(ctx context.Context, id string) (registry.Service, bool, error) {
	var found *api.AgentService
	for range attempts {
		err := a.onNewConnection(func(a consulAgent) (err error) {
			opts, cancel := a.kv.query(ctx, read{})
			defer cancel()
			found, _, err = a.kv.api.Agent().Service(id, opts)
			return err
		})
		if err == nil {
			return serviceOf(found), true, nil
		}
		if !isNotFound(err) {
			return registry.Service{}, false, fmt.Errorf("look up service %s: %w", id, classify(err))
		}
	}
	return registry.Service{}, false, nil
}

// serviceOf returns a service as the local Consul agent has it.
func serviceOf(found *api.AgentService) registry.Service {
	s := registry.Service{Name: found.Service, ID: found.ID, Port: found.Port, Tags: found.Tags, Meta: found.Meta}
	s.Address, _ = netip.ParseAddr(found.Address) // stays invalid for the node's own address
	return s
}

func registration(s registry.Service, v registry.Verdict) *api.AgentServiceRegistration {
	check := &api.AgentServiceCheck{
		CheckID: "service:" + s.ID,
		Name:    "leno agent",
		Status:  v.Status, // until the first poll, instead of critical
	}
	if s.HealthURL == "" {
		check.TTL, check.Notes = checkTTL, ttlNotes
	} else {
		check.HTTP, check.Interval, check.Timeout = s.HealthURL, checkInterval, checkTimeout
		// Consul does not show what a check polls, so the notes do.
		check.Notes = "polls " + s.HealthURL + " every " + checkInterval
	}
	r := &api.AgentServiceRegistration{ID: s.ID, Name: s.Name, Port: s.Port, Tags: s.Tags, Meta: s.Meta, Check: check}
	if s.Epoch != "" {
		check.Notes += ", registered again " + s.Epoch
		r.Meta = map[string]string{epochMeta: s.Epoch}
		maps.Copy(r.Meta, s.Meta)
	}
	if s.Address.IsValid() {
		r.Address = s.Address.String()
	}
	return r
}

// pollError returns an error that wraps registry.ErrNotPolled if the last poll of a check got no answer from the URL.
// check may be nil.
func pollError(check *api.AgentCheck) error {
	// An answer of the URL begins with "HTTP GET", an error of Consul's client with its method.
	if check == nil || check.Status != api.HealthCritical || !strings.HasPrefix(check.Output, "Get ") {
		return nil
	}
	return fmt.Errorf("%w: %s", registry.ErrNotPolled, check.Output)
}

// announced reports whether the Consul agent has the service, and returns its check if both are registered as wanted.
func (a consulAgent) announced(ctx context.Context, wanted *api.AgentServiceRegistration) (
	exists bool, check *api.AgentCheck, err error) {
	opts, cancel := a.kv.query(ctx, read{})
	defer cancel()
	found, _, err := a.kv.api.Agent().Service(wanted.ID, opts)
	if isNotFound(err) {
		return false, nil, nil
	}
	if err != nil {
		return false, nil, classify(err)
	}
	if found.Service != wanted.Name || found.Address != wanted.Address || found.Port != wanted.Port ||
		!slices.Equal(found.Tags, wanted.Tags) || !maps.Equal(found.Meta, wanted.Meta) {
		return true, nil, nil
	}
	filter := fmt.Sprintf("ServiceID == %q", wanted.ID)
	checks, err := a.kv.api.Agent().ChecksWithFilterOpts(filter, opts)
	if err != nil {
		return true, nil, classify(err)
	}
	check, ok := checks[wanted.Check.CheckID]
	if !ok || len(checks) != 1 || check.Name != wanted.Check.Name || check.Notes != wanted.Check.Notes {
		return true, nil, nil
	}
	return true, check, nil
}

func isNotFound(err error) bool {
	var status api.StatusError
	return errors.As(err, &status) && status.Code == http.StatusNotFound
}
