package catalog

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
	"github.com/lenonet/leno/registry/consul/transport"
)

// The service's check. The TTL is twice the 30 s after which agents announce themselves again.
const (
	checkInterval = "10s"
	checkTimeout  = "5s"
	checkTTL      = "60s"
	ttlNotes      = "fed by the leno agent itself"
	epochMeta     = "registered_again"
)

// attempts is how many new connections are tried to find the Consul agent that has a service. Behind a balancer, each
// of them may lead to another Consul agent.
const attempts = 5

// find calls f with clients that each reach one Consul agent, until it reports that this agent has the service.
func (a Agent) find(f func(c *transport.Client, isLast bool) (found bool, err error)) error {
	for attempt := 1; attempt <= attempts; attempt++ {
		found := false
		err := a.client.OverOneConnection(func(c *transport.Client) (err error) {
			found, err = f(c, attempt == attempts)
			return err
		})
		if found || err != nil {
			return transport.Classify(err)
		}
	}
	return nil
}

// Announce makes the services of the local Consul agent show s with the verdict v. The check polls s.HealthURL;
// without a URL it is a TTL check that every call feeds with v. A `consul agent -dev` forgets services at a restart,
// and any program may deregister them, so each call reads first. When a restore removes the service from the servers,
// the local agent does not notice for up to two minutes, unless service and check differ from those it has: s.Epoch is
// part of both. The error wraps registry.ErrNotPolled if the service is registered and the last poll got no answer.
//
// Behind a balancer, the service stays at the Consul agent that has it already.
func (a Agent) Announce(ctx context.Context, s registry.Service, v registry.Verdict) error {
	wanted := registration(s, v)
	tok, err := a.client.Token.Current(ctx)
	var check *api.AgentCheck
	if err == nil {
		err = a.find(func(c *transport.Client, isLast bool) (bool, error) {
			exists, shown, err := announced(ctx, c, wanted)
			if err != nil || !exists && !isLast {
				return false, err
			}
			check = shown
			return true, a.announceHere(ctx, c, wanted, check, v, tok)
		})
	}
	if err != nil {
		return fmt.Errorf("announce service %s: %w", s.ID, transport.Classify(err))
	}
	if s.HealthURL == "" {
		return nil
	}
	return pollError(check)
}

// announceHere makes the Consul agent show the service. check is nil if the agent does not show it as wanted.
func (a Agent) announceHere(
	ctx context.Context, c *transport.Client, wanted *api.AgentServiceRegistration, check *api.AgentCheck,
	v registry.Verdict, tok string,
) error {
	opts, cancel := c.Query(ctx, transport.Read{})
	defer cancel()
	if check == nil || a.isStale(wanted.ID, tok) {
		replace := api.ServiceRegisterOpts{ReplaceExistingChecks: true}.WithContext(opts.Context())
		if err := c.API.Agent().ServiceRegisterOpts(wanted, replace); err != nil {
			return err
		}
		a.tokens.Store(wanted.ID, tok)
		if check == nil {
			a.logger.Info("service registered", "service", wanted.Name, "id", wanted.ID)
		}
	}
	if wanted.Check.TTL == "" {
		return nil
	}
	return c.API.Agent().UpdateTTLOpts(wanted.Check.CheckID, v.Output, v.Status, opts)
}

// isStale reports whether the local Consul agent has a service under a token that was replaced since: it uses the token
// of the registration to tell the servers about the service, and that token may be deleted. The tokens of earlier
// processes are not known. If they came from a login, they have been logged out.
func (a Agent) isStale(id, tok string) bool {
	before, known := a.tokens.Load(id)
	return known && before != tok || !known && a.client.Token.AuthMethod() != ""
}

// Withdraw removes the service from the Consul agent that has it; if it is absent, that is no error.
func (a Agent) Withdraw(ctx context.Context, s registry.Service) error {
	err := a.find(func(c *transport.Client, _ bool) (bool, error) {
		opts, cancel := c.Query(ctx, transport.Read{})
		defer cancel()
		err := c.API.Agent().ServiceDeregisterOpts(s.ID, opts)
		if isNotFound(err) {
			return false, nil
		}
		return true, err
	})
	return registry.Wrap(err, "deregister service %s", s.ID)
}

// Duplicates returns the services of the local Consul agent that have the same value of one Meta entry as s under
// another ID.
func (a Agent) Duplicates(ctx context.Context, s registry.Service, meta string) ([]registry.Service, error) {
	opts, cancel := a.client.Query(ctx, transport.Read{})
	defer cancel()
	filter := fmt.Sprintf("Meta[%q] == %q and ID != %q", meta, s.Meta[meta], s.ID)
	found, err := a.client.API.Agent().ServicesWithFilterOpts(filter, opts)
	if err != nil {
		return nil, fmt.Errorf("list services: %w", transport.Classify(err))
	}
	var out []registry.Service
	for _, id := range slices.Sorted(maps.Keys(found)) {
		out = append(out, serviceOf(found[id]))
	}
	return out, nil
}

// RegisteredService returns the service with the given ID as a Consul agent that the client reaches has it, and false
// when none has it.
func (a Agent) RegisteredService(ctx context.Context, id string) (s registry.Service, ok bool, err error) {
	err = a.find(func(c *transport.Client, _ bool) (bool, error) {
		found, err := service(ctx, c, id)
		if ok = found != nil; ok {
			s = serviceOf(found)
		}
		return ok, err
	})
	if err != nil {
		return registry.Service{}, false, fmt.Errorf("look up service %s: %w", id, err)
	}
	return s, ok, nil
}

// service returns a service of a Consul agent, nil for none.
func service(ctx context.Context, c *transport.Client, id string) (*api.AgentService, error) {
	opts, cancel := c.Query(ctx, transport.Read{})
	defer cancel()
	found, _, err := c.API.Agent().Service(id, opts)
	if isNotFound(err) {
		return nil, nil
	}
	return found, err
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

// announced reports whether a Consul agent has the service, and returns its check if both are registered as wanted.
func announced(ctx context.Context, c *transport.Client, wanted *api.AgentServiceRegistration) (
	exists bool, check *api.AgentCheck, err error,
) {
	found, err := service(ctx, c, wanted.ID)
	if found == nil || err != nil {
		return false, nil, err
	}
	if found.Service != wanted.Name || found.Address != wanted.Address || found.Port != wanted.Port ||
		!slices.Equal(found.Tags, wanted.Tags) || !maps.Equal(found.Meta, wanted.Meta) {
		return true, nil, nil
	}
	opts, cancel := c.Query(ctx, transport.Read{})
	defer cancel()
	checks, err := c.API.Agent().ChecksWithFilterOpts(fmt.Sprintf("ServiceID == %q", wanted.ID), opts)
	check = checks[wanted.Check.CheckID]
	if len(checks) != 1 || check == nil || check.Name != wanted.Check.Name || check.Notes != wanted.Check.Notes {
		return true, nil, err
	}
	return true, check, err
}

func isNotFound(err error) bool {
	status, ok := errors.AsType[api.StatusError](err)
	return ok && status.Code == http.StatusNotFound
}
