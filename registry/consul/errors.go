package consul

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
)

// refusedError is the error of a transaction that Consul rolled back because a check or a lock in it did not hold.
type refusedError struct{ reasons []string }

func (e *refusedError) Error() string {
	return "consul rolled the transaction back: " + strings.Join(e.reasons, "; ")
}

func (e *refusedError) Unwrap() error { return claims.ErrOutdated }

// isRefused reports whether err is a *refusedError.
func isRefused(err error) bool {
	var refused *refusedError
	return errors.As(err, &refused)
}

// uncertain returns an error that wraps ErrUncertain with a reason.
func uncertain(format string, args ...any) error {
	return fmt.Errorf("%w: %s", registry.ErrUncertain, fmt.Sprintf(format, args...))
}

// hidden returns the error for an answer that may lack records because the token may not see them.
func hidden(prefix string) error {
	return fmt.Errorf("%w: %w: the token may not read all of %s", registry.ErrUncertain, registry.ErrDenied, prefix)
}

// wrap adds to an error, if there is one, what was being done.
func wrap(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), *err)
	}
}
