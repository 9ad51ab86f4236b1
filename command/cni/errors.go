package cni

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// Error codes. Those of the specification are in package types, but for the two of
// STATUS; those from 100 on are a plugin's own.
const (
	CodeNotAvailable = 50  // STATUS: an ADD would fail
	CodeLimited      = 51  // STATUS: and containers that run may not be reached
	CodeNoPlugin     = 100 // a plugin that work is given to is missing
	CodeExhausted    = 101 // no address is left in this host's subnet
	CodeAttached     = 102 // the container has this interface already
	CodeOldSubnet    = 103 // CHECK: the container's address is of a subnet that this host had
	CodeCostsRoutes  = 104 // the host would lose IPv6 routes
)

// errorf is an error with a code. What to do about it stands in its text.
func errorf(code uint, format string, args ...any) error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}

// NotAvailable is the one of STATUS, which says the same as the error that ADD would
// give.
func NotAvailable(err error) error {
	return types.NewError(CodeNotAvailable, err.Error(), "")
}

// Limited says that containers may not be reached.
func Limited(network, reasons string) error {
	return errorf(CodeLimited, "network %s: %s; see `leno status`", network, reasons)
}

// NotReady says that nobody has told yet which subnet this host has.
func NotReady(reason string) error {
	return errorf(types.ErrTryAgainLater, "%s", reason)
}

// IsNotReady says whether waiting may help.
func IsNotReady(err error) bool {
	e, ok := err.(*types.Error)
	return ok && e.Code == types.ErrTryAgainLater
}

// CostsRoutes says that the host would lose routes, and what to do.
func CostsRoutes(network, reason string) error {
	return errorf(CodeCostsRoutes, "network %s: %s", network, reason)
}

// IsExhausted says whether no address was left.
func IsExhausted(err error) bool {
	e, ok := err.(*types.Error)
	return ok && e.Code == CodeExhausted
}

// Exhausted says that no address is left.
func Exhausted(d Delegation) error { return exhausted(d, "") }

func exhausted(d Delegation, more string) error {
	return errorf(CodeExhausted, "network %s: no address is left in this host's %s%s. End containers, release what a crash left with the runtime's GC, or give hosts larger subnets (see `leno network plan`)",
		d.Network, join(d.subnets), more)
}

// Print is an error as the specification has it on standard output. version is that
// of the configuration, "" when it has none.
func Print(e *types.Error, version string) []byte {
	if version == "" {
		version = Versions()[len(Versions())-1]
	}
	text, err := json.MarshalIndent(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{version, e}, "", "    ")
	if err != nil { // strings and a number
		return []byte(`{"code": 999}`)
	}
	return append(text, '\n')
}

// Explain says more of what a plugin answered that work was given to: which one it
// was, and where a person can do something what.
func Explain(d Delegation, path string, err error) error {
	e, ok := err.(*types.Error)
	switch text := err.Error(); {
	case strings.Contains(text, "failed to find plugin"):
		return errorf(CodeNoPlugin, "plugin %s is not in CNI_PATH (%s): install the reference plugins there, https://github.com/containernetworking/plugins",
			quotedAfter(text, "failed to find plugin "), path)
	case strings.Contains(text, "no IP addresses available in range set"):
		return exhausted(d, ": "+text)
	case strings.Contains(text, "failed to allocate all requested IPs"), strings.Contains(text, "requested IP address"), strings.Contains(text, "requested ip "):
		return errorf(types.ErrInvalidNetworkConfig, "network %s: %s; ask for a free address of this host's %s, or for none", d.Network, text, join(d.subnets))
	case !ok || e.Code == 0:
		return errorf(types.ErrInternal, "plugin %s: %s", d.Plugin, text)
	default:
		return types.NewError(e.Code, fmt.Sprintf("plugin %s: %s", d.Plugin, e.Msg), e.Details)
	}
}

// quotedAfter is the word in quotes that follows.
func quotedAfter(text, before string) string {
	_, text, _ = strings.Cut(text, before)
	text, _, _ = strings.Cut(strings.TrimPrefix(text, `"`), `"`)
	return text
}

func join[T fmt.Stringer](list []T) string { return strings.Join(words(list), ", ") }

func words[T fmt.Stringer](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.String()
	}
	return out
}
