package cni

import (
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
)

// Error codes. The specification's codes are in package types, except the two of STATUS. Codes
// from 100 are the plugin's own.
const (
	codeNotAvailable = 50  // STATUS: an ADD would fail
	codeLimited      = 51  // STATUS: an ADD would fail, and running containers may not be reachable
	codeNoPlugin     = 100 // a plugin to delegate to is missing
	codeExhausted    = 101 // no address is left in this host's subnet
	codeAttached     = 102 // the container already has this interface
	codeOldSubnet    = 103 // CHECK: the container's address is in an earlier subnet of this host
	codeCostsRoutes  = 104 // the host would lose IPv6 routes
)

// errorf returns an error with a code. Its text contains the fix.
func errorf(code uint, format string, args ...any) error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}

// notAvailableError returns the STATUS error with the text of the error that ADD would return.
func notAvailableError(err error) error {
	return types.NewError(codeNotAvailable, err.Error(), "")
}

// notReadyError returns the error for a subnet that is not known yet.
func notReadyError(reason string) error {
	return errorf(types.ErrTryAgainLater, "%s", reason)
}

// isNotReady reports whether waiting may help.
func isNotReady(err error) bool {
	e, ok := err.(*types.Error)
	return ok && e.Code == types.ErrTryAgainLater
}

// isExhaustedError reports whether no address was left.
func isExhaustedError(err error) bool {
	e, ok := err.(*types.Error)
	return ok && e.Code == codeExhausted
}

// internalError wraps an error of this host, most often of a file.
func internalError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*types.Error](err); ok {
		return err
	}
	return types.NewError(types.ErrIOFailure, err.Error(), "")
}
