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

// inMemory is the store of -dev.
const inMemory = "memory"

// answers is the reason of a store's check that is well.
func answers(name string) string {
	if name == inMemory {
		return "not needed: leases are kept in this process (-dev)"
	}
	return name + " answers"
}

// What a network needs the store for, as its check names it.
const (
	useDefinition   = "reading its definition"
	useClaim        = "claiming a lease"
	useSession      = "renewing the lease"
	useLeases       = "reading the leases"
	useReservations = "reading the reservations"
)

// used takes note of what came of a use of the store for this network, and writes
// the check that says which of them do not work. The errors themselves stand in
// the checks of what they keep from working, and once in the agent's own.
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
		return // it answered, and there may be nothing to use it for yet
	}
	status, reason := verdictOnStore(r.unusable)
	r.check(health.Consul, status, reason)
}

// unused forgets uses that this network has no more.
func (r *runner) unused(whats ...string) {
	for _, what := range whats {
		r.used(what, nil)
	}
}

// verdictOnStore says which uses fail, and how: one line a network, however many.
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

// failureOf is what of an error counts: whoever lacks a right is not certain of
// anything either.
func failureOf(err error) error {
	for _, kind := range []error{registry.ErrToken, registry.ErrDenied, registry.ErrUncertain} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return registry.ErrUnavailable
}
