package registry

import "errors"

// The sentinels. Implementations wrap them with what was being done and, where
// there is one, the record's name.
var (
	ErrNetworkNotFound     = errors.New("network is not defined")
	ErrNetworkExists       = errors.New("network exists already")
	ErrLeaseNotFound       = errors.New("no such lease")
	ErrLeaseLost           = errors.New("lease is not held any more")
	ErrNetworkFull         = errors.New("network is full")
	ErrReservationNotFound = errors.New("no such reservation")
	ErrReserved            = errors.New("reserved for another host")
	ErrHeld                = errors.New("held by another host")
	ErrConflict            = errors.New("changed meanwhile")
	ErrInvalid             = errors.New("invalid")

	// ErrLeaseRevoked, always a *RevokedError: there is no such lease any more because
	// someone revoked it. The host that held it is to take another slot; a record that
	// vanished in any other way is ErrLeaseNotFound, and is taken back.
	ErrLeaseRevoked = errors.New("lease was revoked")

	// ErrDuplicateNode: a live lease of another host carries our name or node
	// id. The text names both hosts.
	ErrDuplicateNode = errors.New("another live host has the same name or node id")
	// ErrDuplicateAddress: a live lease of another host carries our public
	// address. The text names both hosts.
	ErrDuplicateAddress = errors.New("another live host has the same public address")
	// ErrSetBack: the slot the host is at work on is held by a record older than
	// the host's own was, so the store was set back. That host is somewhere else
	// by now, and its record about to go or to lapse, or it lives and keeps the
	// slot. A claim without Prefer, Running and Since takes another one.
	ErrSetBack = errors.New("the store was set back to an older state")

	// ErrLeasesLost: the store has lost the leases of hosts that live, which have not
	// claimed again. The text names them.
	ErrLeasesLost = errors.New("the store has lost leases")

	// ErrUncertain: the answer may be incomplete (stale, emptied, rights lost).
	// Nobody may drop anything because of it.
	ErrUncertain = errors.New("the store's answer is not certain")
	// ErrUnavailable: the store cannot be reached or has no leader; try again.
	ErrUnavailable = errors.New("the store is unavailable")
	// ErrDenied: the token lacks a right; the text says which key or session.
	ErrDenied = errors.New("permission denied")
	// ErrToken: the token could not be read, so the store was not asked. Such an
	// error is also ErrDenied, because it lasts until somebody changes the token.
	ErrToken = errors.New("the token cannot be read")
)

// RevokedError is an ErrLeaseRevoked.
type RevokedError struct {
	NodeID string // of the host the lease was taken from, "" when the record did not tell
}

func (e *RevokedError) Error() string { return ErrLeaseRevoked.Error() }
func (e *RevokedError) Unwrap() error { return ErrLeaseRevoked }

// RevokedFrom reports whether err is an ErrLeaseRevoked about the host with a node
// id, or about one that is not known.
func RevokedFrom(err error, nodeID string) bool {
	var revoked *RevokedError
	return errors.As(err, &revoked) && (revoked.NodeID == "" || revoked.NodeID == nodeID)
}
