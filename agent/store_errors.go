package agent

import (
	"context"
	"errors"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/registry"
)

// newOutageDetector returns an OutageDetector for a registry. Without registry.Prober it does not probe.
func newOutageDetector(reg registry.Registry) *retry.OutageDetector {
	var probe func(context.Context) error
	if prober, ok := reg.(registry.Prober); ok {
		probe = prober.Probe
	}
	return retry.NewOutageDetector(probe, classify)
}

// classify returns what an error of the registry means for the next attempt.
func classify(err error) retry.Class {
	is := func(errs ...error) bool {
		for _, e := range errs {
			if errors.Is(err, e) {
				return true
			}
		}
		return false
	}
	switch {
	case is(registry.ErrUnavailable):
		return retry.Unavailable
	case is(registry.ErrDenied):
		return retry.Denied
	case is(registry.ErrNetworkFull, registry.ErrDuplicateNode, registry.ErrDuplicateAddress,
		registry.ErrNetworkNotFound, registry.ErrInvalid, registry.ErrNotSupported):
		return retry.NeedsOperator
	}
	return retry.Transient
}
