package agent

import (
	"errors"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/registry"
)

// newOutageDetector returns an OutageDetector for a registry. It probes a store that can be probed.
func newOutageDetector(reg registry.Registry) *retry.OutageDetector {
	return retry.NewOutageDetector(reg.Abilities().Probe, classify)
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
		registry.ErrHeld, registry.ErrNetworkNotFound, registry.ErrInvalid, registry.ErrNotSupported):
		return retry.NeedsOperator
	}
	return retry.Transient
}
