package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Implementations wrap the sentinels with what was being done and, where there is one, the record's name.
var (
	ErrNetworkNotFound     = errors.New("network is not defined")
	ErrNetworkExists       = errors.New("network exists already")
	ErrLeaseNotFound       = errors.New("no such lease")
	ErrLeaseLost           = errors.New("lease is not held any more")
	ErrNetworkFull         = errors.New("network is full")
	ErrReservationNotFound = errors.New("no such reservation")
	ErrReserved            = errors.New("reserved for another host")
	ErrHeld                = errors.New("held by another host")
	ErrConflict            = errors.New("changed since it was read")
	ErrInvalid             = errors.New("invalid")

	// ErrLeaseRevoked, always a *RevokedError, means that the lease no longer exists because it was revoked. The host
	// that held it must take another slot. A record that vanished in any other way is ErrLeaseNotFound, and its host
	// takes it back.
	ErrLeaseRevoked = errors.New("lease was revoked")

	// ErrDuplicateNode means that a live lease of another host has our name or node id. The text names both hosts.
	ErrDuplicateNode = errors.New("another live host has the same name or node id")
	// ErrDuplicateAddress means that a live lease of another host has our public address, and the port does not tell them
	// apart. The text names both hosts.
	ErrDuplicateAddress = errors.New("another live host has the same public address")
	// ErrSetBack means that a record older than the host's own holds the slot the host is using, so the store was set
	// back. Either the host of that record has another slot by now and the record is about to be deleted or to lapse,
	// or that host is alive and keeps the slot. A claim without Prefer, Running and Since takes another slot.
	ErrSetBack = errors.New("the store was set back to an older state")

	// ErrLeasesLost means that the store has lost the leases of live hosts that have not claimed again. The text names
	// them.
	ErrLeasesLost = errors.New("the store has lost leases")

	// ErrUncertain means that the answer may be incomplete (stale, emptied, rights lost). No caller may drop anything
	// because of it.
	ErrUncertain = errors.New("the store's answer is not certain")
	// ErrUnavailable means that the store cannot be reached or has no leader; try again.
	ErrUnavailable = errors.New("the store is unavailable")
	// ErrNoSpace means that the store answers, and writes nothing new because it has no space. Such an error is also
	// ErrUnavailable, because it lasts until an operator frees some.
	ErrNoSpace = fmt.Errorf("%w: it has no space", ErrUnavailable)
	// ErrDenied means that the token lacks a right; the text names the key or session.
	ErrDenied = errors.New("permission denied")
	// ErrToken means that the token could not be read, so the store was not asked, or that Kubernetes does not accept it.
	// Such an error is also ErrDenied, because it lasts until the token is changed.
	ErrToken = errors.New("the token cannot be read")
	// ErrLogin, always a *LoginError, means that this host has no token because it could not log in. Such an error is
	// also ErrToken and ErrDenied.
	ErrLogin = errors.New("the login failed")

	// ErrRefused, always a *RefusedError, means that the store's configuration forbids the request to this host, whatever
	// the token. Such an error is also ErrDenied, because it lasts until an operator changes something.
	ErrRefused = errors.New("the store refuses this host")

	// ErrNotPolled means that the catalogue shows a service, but cannot reach the URL of its health.
	ErrNotPolled = errors.New("the health cannot be polled")

	// ErrNotSupported means that this kind of store cannot do what was asked, and never will. The text says what, and
	// where one does it instead.
	ErrNotSupported = errors.New("not supported by this store")
)

// LoginError is the error type of ErrLogin. Its text is the error and, after a semicolon, the remedy.
type LoginError struct {
	Err    error  // what went wrong
	Remedy string // what to do about it, as an imperative: "create the auth method"
}

func (e *LoginError) Error() string   { return e.Err.Error() + "; " + e.Remedy }
func (e *LoginError) Unwrap() []error { return []error{ErrLogin, ErrToken, ErrDenied, e.Err} }

// RefusedError is the error type of ErrRefused. Its text is the error and, after a semicolon, the remedy.
type RefusedError struct {
	Err    error  // what the store answered
	Remedy string // what to do about it, as an imperative
}

func (e *RefusedError) Error() string   { return e.Err.Error() + "; " + e.Remedy }
func (e *RefusedError) Unwrap() []error { return []error{ErrRefused, ErrDenied, e.Err} }

// RevokedError is the error type of ErrLeaseRevoked.
type RevokedError struct {
	NodeID string // of the host that held the lease, "" when the record did not contain one
}

func (e *RevokedError) Error() string { return ErrLeaseRevoked.Error() }
func (e *RevokedError) Unwrap() error { return ErrLeaseRevoked }

// RevokedFrom reports whether err is an ErrLeaseRevoked about the host with the given node id, or about a host that is
// not known.
func RevokedFrom(err error, nodeID string) bool {
	var revoked *RevokedError
	return errors.As(err, &revoked) && (revoked.NodeID == "" || revoked.NodeID == nodeID)
}

// Wrap says what was being done when err happened. The end of the caller's context is returned as it is.
func Wrap(err error, format string, args ...any) error {
	if err == nil || err == context.Canceled || err == context.DeadlineExceeded {
		return err
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// Reason returns the text of an error. If the store was unavailable, and the text says why, it leaves out which request
// failed: the same cause makes all of them fail.
func Reason(err error) string {
	text, unavailable := err.Error(), ErrUnavailable.Error()
	if i := strings.Index(text, unavailable); i >= 0 && errors.Is(err, ErrUnavailable) && len(text) > i+len(unavailable) {
		return text[i:]
	}
	return text
}

// Brief returns ErrUnavailable alone for an error that means that, and any other error unchanged. It is for checks
// beside that of the lease, which has the cause.
func Brief(err error) error {
	if errors.Is(err, ErrUnavailable) {
		return ErrUnavailable
	}
	return err
}
