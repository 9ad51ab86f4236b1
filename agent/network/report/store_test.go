package report

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

func TestVerdictOnStore(t *testing.T) {
	away := fmt.Errorf("%w: connection refused", registry.ErrUnavailable)
	denied := fmt.Errorf("%w: %w: hidden", registry.ErrUncertain, registry.ErrDenied)
	for _, tt := range []struct {
		name           string
		unusable       map[Use]error
		status, reason string
	}{
		{"all works", nil, api.Passing, "can be read"},
		{"away", map[Use]error{Session: away, Leases: away}, api.Warning, "there is no answer to reading the leases, renewing the lease"},
		{"no space", map[Use]error{Claim: fmt.Errorf("%w: quota", registry.ErrNoSpace), Leases: away}, api.Warning,
			"the store has no space for claiming a lease (quota); there is no answer to reading the leases"},
		{"one right is missing", map[Use]error{Reservations: denied}, api.Warning, "this agent's token lacks a right for reading the reservations"},
		{"no token", map[Use]error{Session: noToken{}, Claim: denied}, api.Warning,
			"this agent's token file cannot be used for renewing the lease; this agent's token lacks a right for claiming a lease"},
		{"no login", map[Use]error{Session: &registry.LoginError{Err: away}}, api.Warning,
			"this agent cannot log in for renewing the lease"},
		{"refused", map[Use]error{Claim: &registry.RefusedError{Err: away}, Leases: denied}, api.Warning,
			"the store's configuration forbids this host claiming a lease; this agent's token lacks a right for reading the leases"},
		{"several things", map[Use]error{Session: denied, Leases: registry.ErrUncertain, Claim: errors.New("time is up")}, api.Warning,
			"this agent's token lacks a right for renewing the lease; there is no certain answer to reading the leases; there is no answer to claiming a lease"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, reason := verdictOnStore("etcd", tt.unusable); strings.Contains(reason, "token") {
				t.Errorf("etcd: %s", reason)
			}
			if status, reason := verdictOnStore("", tt.unusable); status != tt.status || !strings.Contains(reason, tt.reason) {
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
	r, board := newReporter(t)
	checks := func() []api.Check {
		all, _ := board.Report()
		return all.Networks[0].Checks
	}
	consul := func(status, reason string) {
		t.Helper()
		for _, c := range checks() {
			if c.Name == health.Consul && c.Status == status && strings.Contains(c.Reason, reason) && !strings.Contains(c.Reason, "no luck") {
				return
			}
		}
		t.Errorf("%+v", checks())
	}
	r.Used(Definition, registry.ErrNetworkNotFound)
	if len(checks()) != 1 {
		t.Errorf("there is no network: %+v", checks())
	}
	r.Used(Definition, nil)
	r.Used(Claim, registry.ErrNetworkFull)
	consul(api.Passing, "")
	r.Used(Claim, fmt.Errorf("%w: no luck", registry.ErrUnavailable))
	r.Used(Session, fmt.Errorf("%w: no luck", registry.ErrDenied))
	consul(api.Warning, "no answer to "+string(Claim))
	consul(api.Warning, "lacks a right for "+string(Session))
	r.Used(Claim, nil)
	consul(api.Warning, string(Session))
	r.Unused(Session)
	consul(api.Passing, "")
}
