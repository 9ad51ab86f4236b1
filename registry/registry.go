// Package registry is the contract between an agent and the store that all hosts share. The store contains networks,
// the leases that hosts hold in them, and reservations.
//
// The package defines the types and the sentinel errors, validates what other hosts wrote, does the arithmetic of slots
// and chooses a slot. It knows nothing about how packets travel: the backend's options and attributes pass through it
// as opaque JSON. Implementations are in registry/consul and registry/memory and pass the test suite in
// internal/testkit/registrytest.
package registry

import (
	"context"
	"math"
	"net/netip"
	"time"
)

// Registry is the whole store. Every method blocks until it has an answer, is safe for concurrent use, and honours ctx.
//
// Errors of all methods wrap one of the sentinels in errors.go where one fits, and the store's own error otherwise.
type Registry interface {
	Networks
	Leases
	Reservations

	// As returns the same store with every call made under the given token. The empty token is the store's anonymous
	// token, never the agent's own.
	As(token string) Registry

	// Reconnect closes the connections from addresses that this host no longer has, of all tokens. Calls over them fail
	// with ErrUnavailable, where they would otherwise wait for a time limit, and later calls connect again.
	Reconnect()

	// Abilities returns what this store can do beyond that, under the token of this client.
	Abilities() Abilities
}

// Networks provides access to the definitions that every host agrees on.
type Networks interface {
	// Network returns the current definition of one network. Errors: ErrNetworkNotFound when there is none, as a
	// *DeletedError when the network was deleted; ErrInvalid when the stored record cannot be used.
	Network(ctx context.Context, name string) (Network, error)

	// PutNetwork stores a definition. n.ModifyIndex determines what it may replace: 0 only creates, also where a
	// network was deleted, and returns ErrNetworkExists when there is a definition; Absent only creates where there is
	// no record at all, and returns ErrConflict when there is one; any other value replaces exactly that version of a
	// definition or a Deletion, and returns ErrConflict when the record has changed. PutNetwork also creates the
	// network's marker key for leases.
	//
	// A new network may be given reservations, each under the rules of AddReservation without force: a reader that sees
	// the network finds all of them. When PutNetwork is refused, it leaves behind no reservation that did not exist
	// before, even when other hosts define the same network with the same reservations at the same time. After
	// ErrUnavailable the reservations stay, because the network may have been created nevertheless.
	PutNetwork(ctx context.Context, n Network, kept ...Reservation) error

	// DeleteNetwork replaces the definition, usable or not, with a Deletion and removes the network's reservations. It
	// also does so when the definition is missing and there are still leases. When there are only reservations, it
	// removes them and writes no Deletion. Leases stay until their hosts release them. DeleteNetwork returns
	// ErrNetworkNotFound when there is nothing to delete.
	//
	// The Deletion stays as long as there are leases, and it is not one of OldDeletions.
	DeleteNetwork(ctx context.Context, name string) error

	// PutDeletion restores a Deletion that the store has lost, with its original Time. It returns ErrConflict when
	// there is any record of the network.
	PutDeletion(ctx context.Context, d Deletion) error

	// Holders returns the hosts that have a session for a network, sorted by node, as far as the token can see
	// sessions. There may be holders even when the definition or leases are lost.
	Holders(ctx context.Context, network string) ([]Holder, error)

	// WatchNetworks blocks until the index of the networks differs from after and returns all networks, sorted by name.
	// With after 0 it returns at once.
	//
	// Only a Deletion means that a network has ended. A network that is missing from the set was lost by the store, or
	// the set shows an older state: Network tells which.
	WatchNetworks(ctx context.Context, after uint64) (NetworkSet, uint64, error)
}

// Leases provides access to the claims of hosts on slots.
type Leases interface {
	// Acquire claims a slot of n for one host, in the order documented at Choose, and writes the complete lease in one
	// transaction. It is repeatable: the holder calls it again to change its attributes, and it writes only when
	// something differs. It removes other leases of the host.
	//
	// At the moment of the claim the stored definition has the plan of n, or it cannot be used, or the store has lost
	// it. n.ModifyIndex is 0 when the version is not known.
	//
	// Errors: ErrNetworkFull; a *RivalError of ErrDuplicateNode, ErrDuplicateAddress or ErrSetBack; ErrLeasesLost for a
	// slot that the host is not using, see claim.LostLeases; ErrInvalid for a claim that no host could read; ErrConflict
	// when the plan has changed, or when other hosts were faster again and again; ErrNetworkNotFound, as a *DeletedError,
	// when the network was deleted; ErrHeld or ErrReserved for a claim with OnlySlot; ErrHeld from a store that assigns
	// subnets, when another host has that of this one, whichever record is the later; ErrUnavailable, ErrDenied.
	Acquire(ctx context.Context, n Network, c Claim) (Lease, error)

	// Renew keeps the lease's session alive for another TTL and writes nothing else, except that it removes other records
	// that the session holds and the client knows. It returns ErrLeaseLost when the session has ended.
	Renew(ctx context.Context, l Lease) error

	// Release gives up the lease: it deletes the record and ends the session. It leaves alone a lease that the caller
	// no longer holds; that is no error.
	Release(ctx context.Context, l Lease) error

	// Revoke removes the lease that covers subnet, held or lapsed, and tells its host to take another slot
	// (ErrLeaseRevoked of WatchLease). It returns ErrLeaseNotFound when there is no such lease.
	Revoke(ctx context.Context, network string, subnet netip.Prefix) error

	// Expire removes a lapsed lease that is still exactly the given version. It returns ErrConflict when the lease has
	// been taken, changed or removed since.
	Expire(ctx context.Context, l Lease) error

	// Restore writes the record of a lease that the store has lost (Lease.Lost), on behalf of its host. No session holds
	// it, so it is lapsed: it keeps the slot for its host, and can expire after hold. The record of a host that runs
	// flannel is as flanneld wrote it, and lasts for FlannelTTL. Restore returns ErrConflict when there is a record on the
	// slot, and ErrUncertain when the network has no marker.
	Restore(ctx context.Context, n Network, l Lease, hold time.Duration) error

	// WatchLease blocks until the index of one lease differs from after. Errors: ErrLeaseNotFound, with a valid index,
	// when there is no such lease; ErrLeaseRevoked instead when Revoke removed it, for as long as the store remembers
	// that, at least a minute: RevokedFrom reports whose lease it was; ErrInvalid, with a valid index, when the record
	// cannot be used.
	WatchLease(ctx context.Context, n Network, subnet netip.Prefix, after uint64) (Lease, uint64, error)

	// WatchLeases blocks until the index of n's leases differs from after and returns all leases, sorted by slot, with
	// the records it had to skip. When the set may be incomplete, it returns ErrUncertain, never a short list: the
	// caller keeps what it has. A call after one that failed returns as soon as the store answers, even when nothing
	// changed.
	//
	// With after 0 it reads everything again. With Known it returns what this client already knows, if it knows
	// anything. With other values it may show a lapse later than it happens, and a change made outside this interface
	// within a minute.
	WatchLeases(ctx context.Context, n Network, after uint64) (LeaseSet, uint64, error)
}

// Absent is the ModifyIndex of a network that PutNetwork must not put in place of any record.
const Absent uint64 = math.MaxUint64

// Known is an index that no set has.
const Known uint64 = math.MaxUint64

// Reservations provides access to slots that are kept permanently for one host.
type Reservations interface {
	// AddReservation keeps a slot for a host. Adding the same reservation again is no error. Errors: ErrReserved when
	// the slot is kept for another host or the host already has another slot in this network; ErrHeld, unless force is
	// set, when another live host holds a lease on the slot; ErrInvalid when the subnet is not a slot of n or is out of
	// its range. Leases are left alone, with or without force.
	AddReservation(ctx context.Context, n Network, r Reservation, force bool) error

	// RemoveReservation removes a reservation and leaves any lease alone. It returns ErrReservationNotFound when there
	// is none.
	RemoveReservation(ctx context.Context, network string, subnet netip.Prefix) error

	// WatchReservations blocks until the index of n's reservations differs from after. It returns them sorted by slot,
	// with the records it had to skip. For a network that is not defined, n only has a name: then the reservations have no
	// slots and are sorted by subnet. With after 0 it reads them again and returns at once. With Known it returns at once
	// what this client already knows, if it follows the store. When there are no reservations, it may return although
	// nothing changed.
	WatchReservations(ctx context.Context, n Network, after uint64) (ReservationSet, uint64, error)
}

// Claim describes a host that requests a lease.
type Claim struct {
	Node      string       // node name, unique in the network
	NodeID    string       // UUID of the state directory, unique in the network
	PublicIPs []netip.Addr // underlay addresses, the first is the lease's public_ip
	MTU       int          // of the overlay, in bytes
	Backend   Backend      // type, and attributes that peers need

	Session   string        // session of an earlier process to adopt, "" for none
	Prefer    netip.Prefix  // subnet held before, invalid for none
	Running   bool          // the host is using Prefer: it has lost the record, not the subnet
	RecentUse bool          // the host held Prefer less than Hold ago, so no other host was given it
	Since     uint64        // ModifyIndex of the host's last record on Prefer, 0 when not known
	Avoid     netip.Prefix  // subnet that was revoked from the host, taken only as a last resort; invalid for none
	Lost      time.Time     // when the host saw that the store had lost the network, zero for never
	Known     int           // how many leases there were before that loss, 0 if that is not known
	TTL       time.Duration // a session lives between one and two TTLs after its last renewal
	Hold      time.Duration // how long a lapsed lease is kept for its host
	OnlySlot  bool          // Prefer or nothing, on behalf of a host that is elsewhere: see Choose
}

// TakesBack reports whether the host is using subnet, or held it recently.
func (c Claim) TakesBack(subnet netip.Prefix) bool {
	return (c.Running || c.RecentUse) && c.Prefer == subnet
}

// Holder is a host that has a session for a network; the session holds the host's lease there.
type Holder struct {
	Node        string
	Session     string
	CreateIndex uint64 // of the session
}
