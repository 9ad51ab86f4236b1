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

	// ErrLeaseRevoked: there is no such lease any more because somebody revoked
	// it. Whoever held it shall take another slot; a record that vanished in any
	// other way is ErrLeaseNotFound, and is taken back.
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

	// ErrUncertain: the answer may be incomplete (stale, emptied, rights lost).
	// Nobody may drop anything because of it.
	ErrUncertain = errors.New("the store's answer is not certain")
	// ErrUnavailable: the store cannot be reached or has no leader; try again.
	ErrUnavailable = errors.New("the store is unavailable")
	// ErrDenied: the token lacks a right; the text says which key or session.
	ErrDenied = errors.New("permission denied")
)
