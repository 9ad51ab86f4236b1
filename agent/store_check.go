package agent

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// inMemory is the name of the store that -dev uses.
const inMemory = "memory"

// answers returns the reason of the store's check while the store answers.
func answers(name string) string {
	if name == inMemory {
		return "not needed: leases are kept in this process (-dev)"
	}
	return name + " answers"
}

// What a network uses the store for, in the words of its check.
const (
	useDefinition   = "reading its definition"
	useClaim        = "claiming a lease"
	useSession      = "renewing the lease"
	useLeases       = "reading the leases"
	useReservations = "reading the reservations"
)

// used records the result of a use of the store for this network, and updates the check that names the uses that fail.
// The errors themselves appear in the checks of what they prevent, and once in the agent's check of the store.
func (r *runner) used(what string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	failing := len(r.unusable) > 0
	if err != nil && away(err) {
		r.unusable[what] = err
	} else {
		delete(r.unusable, what)
	}
	if err != nil && !failing && len(r.unusable) == 0 {
		return // the store has answered, and this network may have no use for it yet
	}
	status, reason := verdictOnStore(r.unusable)
	r.check(health.Consul, status, reason)
}

// unused forgets uses that this network no longer has.
func (r *runner) unused(whats ...string) {
	for _, what := range whats {
		r.used(what, nil)
	}
}

// verdictOnStore returns the status and the reason of the check: one line about all uses that fail, by kind of failure.
func verdictOnStore(unusable map[string]error) (status, reason string) {
	if len(unusable) == 0 {
		return api.Passing, "its records can be read, its lease can be renewed"
	}
	var parts []string
	for _, kind := range []struct {
		is    error
		words string
	}{
		{registry.ErrToken, "this agent's token file cannot be used for "},
		{registry.ErrDenied, "this agent's token lacks a right for "},
		{registry.ErrUncertain, "there is no certain answer to "},
		{registry.ErrUnavailable, "there is no answer to "},
	} {
		var uses []string
		for _, use := range slices.Sorted(maps.Keys(unusable)) {
			if failureOf(unusable[use]) == kind.is {
				uses = append(uses, use)
			}
		}
		if len(uses) > 0 {
			parts = append(parts, kind.words+strings.Join(uses, ", "))
		}
	}
	return api.Warning, strings.Join(parts, "; ")
}

// failureOf returns the kind of an error. ErrToken and ErrDenied come before ErrUncertain, because without a right an
// answer is not certain either.
func failureOf(err error) error {
	for _, kind := range []error{registry.ErrToken, registry.ErrDenied, registry.ErrUncertain} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return registry.ErrUnavailable
}
