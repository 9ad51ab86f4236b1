package cni

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/command/cli"
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

// notAvailable returns the STATUS error with the text of the error that ADD would return.
func notAvailable(err error) error {
	return types.NewError(codeNotAvailable, err.Error(), "")
}

// limited returns the error for containers that may not be reachable.
func limited(network, reasons string) error {
	return errorf(codeLimited, "network %s: %s; see `leno status`", network, reasons)
}

// notReady returns the error for a subnet that is not known yet.
func notReady(reason string) error {
	return errorf(types.ErrTryAgainLater, "%s", reason)
}

// isNotReady reports whether waiting may help.
func isNotReady(err error) bool {
	e, ok := err.(*types.Error)
	return ok && e.Code == types.ErrTryAgainLater
}

// costsRoutes returns the error for a host that would lose routes, with the fix.
func costsRoutes(network, reason string) error {
	return errorf(codeCostsRoutes, "network %s: %s", network, reason)
}

// isExhaustedError reports whether no address was left.
func isExhaustedError(err error) bool {
	e, ok := err.(*types.Error)
	return ok && e.Code == codeExhausted
}

// exhaustedError returns the error for a subnet without a free address.
func exhaustedError(d delegation) error { return exhaustedErrorf(d, "") }

func exhaustedErrorf(d delegation, more string) error {
	return errorf(codeExhausted,
		"network %s: no address is left in this host's %s%s. End containers, release what a crash left with the "+
			"runtime's GC, or give hosts larger subnets (see `leno network plan`)",
		d.Network, join(d.subnets), more)
}

// explain adds to a plugin's error the name of the plugin and, if a person can act, the fix.
func explain(d delegation, path string, err error) error {
	e, ok := err.(*types.Error)
	switch text := err.Error(); {
	case strings.Contains(text, "failed to find plugin"):
		return errorf(codeNoPlugin,
			"plugin %s is not in CNI_PATH (%s): install the reference plugins there, https://github.com/containernetworking/plugins",
			quotedAfter(text, "failed to find plugin "), path)
	case strings.Contains(text, "no IP addresses available in range set"):
		return exhaustedErrorf(d, ": "+text)
	case strings.Contains(text, "failed to allocate all requested IPs"),
		strings.Contains(text, "requested IP address"), strings.Contains(text, "requested ip "):
		return errorf(types.ErrInvalidNetworkConfig, "network %s: %s; ask for a free address of this host's %s, or for none",
			d.Network, text, join(d.subnets))
	case !ok || e.Code == 0:
		return errorf(types.ErrInternal, "plugin %s: %s", d.Plugin, text)
	default:
		return types.NewError(e.Code, fmt.Sprintf("plugin %s: %s", d.Plugin, e.Msg), e.Details)
	}
}

// quotedAfter returns the quoted word after before.
func quotedAfter(text, before string) string {
	_, text, _ = strings.Cut(text, before)
	text, _, _ = strings.Cut(strings.TrimPrefix(text, `"`), `"`)
	return text
}

func join[T fmt.Stringer](list []T) string { return cli.Join(list, ", ") }

// internal wraps an error of this host, most often of a file.
func internal(err error) error {
	if err == nil {
		return nil
	}
	var known *types.Error
	if errors.As(err, &known) {
		return err
	}
	return types.NewError(types.ErrIOFailure, err.Error(), "")
}
