package report

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// A Use is what a network needs the store for, in the words of its check.
type Use string

// The uses.
const (
	Definition   Use = "reading or creating its definition"
	Claim        Use = "claiming a lease"
	Session      Use = "renewing the lease"
	Leases       Use = "reading the leases"
	Reservations Use = "reading the reservations"
)

// Used records the result of a use of the store, and updates the check that names the uses that fail. The errors
// themselves appear in the checks of what they prevent, and once in the agent's check of the store.
func (r *Reporter) Used(use Use, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.store) > 0
	if err != nil && Away(err) {
		r.store[use] = err
	} else {
		delete(r.store, use)
	}
	if err != nil && !before && len(r.store) == 0 {
		return // the store has answered, and this network may have no use for it yet
	}
	status, reason := verdictOnStore(r.o.Store, r.store)
	r.Check(health.StoreCheck(r.o.Store), status, reason)
}

// Unused forgets uses that the network no longer has.
func (r *Reporter) Unused(uses ...Use) {
	for _, use := range uses {
		r.Used(use, nil)
	}
}

// Away reports whether an error means that the store could not be used, so that it is no answer to the request.
func Away(err error) bool {
	return errors.Is(err, registry.ErrUnavailable) || errors.Is(err, registry.ErrDenied) ||
		errors.Is(err, registry.ErrUncertain) ||
		errors.Is(err, context.DeadlineExceeded)
}

// verdictOnStore returns the status and the reason of the check: one line about all uses that fail, by kind of failure.
func verdictOnStore(kind string, failing map[Use]error) (status, reason string) {
	if len(failing) == 0 {
		return api.Passing, "its records can be read, its lease can be renewed"
	}
	file, user := "token file", "token"
	switch health.StoreCheck(kind) {
	case health.Etcd:
		file, user = "password file", "user"
	case health.Kubernetes:
		file, user = "credentials", "user"
	}
	var parts []string
	for _, kind := range []struct {
		is    error
		words string
	}{
		{registry.ErrLogin, "this agent cannot log in for "},
		{registry.ErrToken, "this agent's " + file + " cannot be used for "},
		{registry.ErrRefused, "the store's configuration forbids this host "},
		{registry.ErrDenied, "this agent's " + user + " lacks a right for "},
		{registry.ErrUncertain, "there is no certain answer to "},
		{registry.ErrNoSpace, "the store has no space for "},
		{registry.ErrUnavailable, "there is no answer to "},
	} {
		var uses []string
		for _, use := range slices.Sorted(maps.Keys(failing)) {
			if failureOf(failing[use]) == kind.is {
				uses = append(uses, string(use))
			}
		}
		if len(uses) > 0 {
			parts = append(parts, kind.words+strings.Join(uses, ", ")+answerOf(failing[Use(uses[0])]))
		}
	}
	return api.Warning, strings.Join(parts, "; ")
}

// answerOf returns the answer of a store that has no space, such as " (database space exceeded)"; "" for other errors.
func answerOf(err error) string {
	_, answer, found := strings.Cut(err.Error(), registry.ErrNoSpace.Error()+": ")
	if !found {
		return ""
	}
	return " (" + answer + ")"
}

// failureOf returns the kind of an error. ErrLogin comes before ErrToken, which it is too, and ErrRefused before
// ErrDenied. They come before ErrUncertain, because without a right an answer is not certain either.
func failureOf(err error) error {
	for _, kind := range []error{
		registry.ErrLogin, registry.ErrToken, registry.ErrRefused, registry.ErrDenied, registry.ErrUncertain,
		registry.ErrNoSpace,
	} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return registry.ErrUnavailable
}
