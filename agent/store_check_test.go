package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestVerdictOnStore(t *testing.T) {
	away, denied := fmt.Errorf("%w: connection refused", registry.ErrUnavailable), fmt.Errorf("%w: %w: hidden", registry.ErrUncertain, registry.ErrDenied)
	for _, tt := range []struct {
		name           string
		unusable       map[string]error
		status, reason string
	}{
		{"all works", nil, api.Passing, "can be read"},
		{"away", map[string]error{useSession: away, useLeases: away}, api.Warning, "there is no answer to reading the leases, renewing the lease"},
		{"one right is missing", map[string]error{useReservations: denied}, api.Warning, "this agent's token lacks a right for reading the reservations"},
		{"no token", map[string]error{useSession: noToken{}, useClaim: denied}, api.Warning,
			"this agent's token file cannot be used for renewing the lease; this agent's token lacks a right for claiming a lease"},
		{"several things", map[string]error{useSession: denied, useLeases: registry.ErrUncertain, useClaim: errors.New("time is up")}, api.Warning,
			"this agent's token lacks a right for renewing the lease; there is no certain answer to reading the leases; there is no answer to claiming a lease"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if status, reason := verdictOnStore(tt.unusable); status != tt.status || !strings.Contains(reason, tt.reason) {
				t.Errorf("%s: %s", status, reason)
			}
		})
	}
}

// noToken is the error of a store whose token file cannot be used.
type noToken struct{}

func (noToken) Error() string   { return "consul token file t: it is empty" }
func (noToken) Unwrap() []error { return []error{registry.ErrToken, registry.ErrDenied} }

// TestStoreCheckOfANetwork: the check names what the store cannot be used for, without the error, which is shown
// elsewhere. A justified refusal is no fault of the store.
func TestStoreCheckOfANetwork(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	r := h.part()
	consul := func(status, reason string) {
		t.Helper()
		report, _ := h.agent.env.health.Report()
		for _, c := range report.Networks[0].Checks {
			if c.Name == health.Consul && c.Status == status && strings.Contains(c.Reason, reason) && !strings.Contains(c.Reason, "no luck") {
				return
			}
		}
		t.Errorf("%+v", report.Networks[0].Checks)
	}
	r.used(useDefinition, registry.ErrNetworkNotFound)
	if report, _ := h.agent.env.health.Report(); len(report.Networks[0].Checks) != 1 {
		t.Errorf("there is no network: %+v", report.Networks[0].Checks)
	}
	r.used(useDefinition, nil)
	r.used(useClaim, registry.ErrNetworkFull)
	consul(api.Passing, "")
	r.used(useClaim, fmt.Errorf("%w: no luck", registry.ErrUnavailable))
	r.used(useSession, fmt.Errorf("%w: no luck", registry.ErrDenied))
	consul(api.Warning, "no answer to "+useClaim)
	consul(api.Warning, "lacks a right for "+useSession)
	r.used(useClaim, nil)
	consul(api.Warning, useSession)
	r.unused(useSession)
	consul(api.Passing, "")
}
