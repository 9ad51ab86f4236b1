// Package registry is the contract between an agent and the store that all
// hosts share: networks, the leases hosts hold in them, and reservations.
//
// It owns the types, the sentinel errors, the validation of what other hosts
// wrote, the arithmetic of slots and the choice of a slot. It refuses to know
// how packets travel: the backend's options and attributes pass through it as
// opaque JSON. Implementations live in registry/consul and registry/memory and
// pass the suite in registry/registrytest.
package registry

import (
	"context"
	"math"
	"net/netip"
	"time"
)

// Registry is the whole store. Every method blocks until it has an answer, may
// be called concurrently, and honours ctx.
//
// Errors of all methods wrap one of the sentinels in errors.go where one fits,
// and the store's own error otherwise.
type Registry interface {
	Networks
	Leases
	Reservations

	// As returns the same store with every call made under the given token.
	// The empty token is the store's anonymous one, never the agent's own.
	As(token string) Registry
}

// Networks carries the definitions every host agrees on.
type Networks interface {
	// Network returns one definition as the store has it now. Errors:
	// ErrNetworkNotFound when there is none, as a *DeletedError when someone deleted
	// it; ErrInvalid when the stored record cannot be used.
	Network(ctx context.Context, name string) (Network, error)

	// PutNetwork stores a definition. n.ModifyIndex says what it may replace:
	// 0 creates only, also where a network was deleted, and gives ErrNetworkExists
	// when there is one; Absent creates only where there is no record at all, and gives
	// ErrConflict when there is one; any other value replaces exactly that version, of
	// a definition or a Deletion, and gives ErrConflict when it moved.
	// The network's marker key for leases is created on the way.
	//
	// A network that is created may be given reservations, each as AddReservation
	// takes it without force: who sees the network finds all of them. When it is
	// refused nothing of them stays that was not there before, also when others
	// define the same network with the same reservations at once. They stay with
	// ErrUnavailable, when the network may have been created all the same.
	PutNetwork(ctx context.Context, n Network, kept ...Reservation) error

	// DeleteNetwork puts a Deletion in the place of the definition, usable or not,
	// and removes the network's reservations. It does so as well when the definition
	// is missing and leases are left; when only reservations are left, it removes
	// these and puts no Deletion. Leases stay until their hosts let go of them.
	// ErrNetworkNotFound when there is nothing to delete.
	//
	// The Deletion stays for as long as there are leases, and for DeletionKept.
	DeleteNetwork(ctx context.Context, name string) error

	// PutDeletion puts back a Deletion that the store has lost, with the Time it had.
	// ErrConflict when there is any record of the network.
	PutDeletion(ctx context.Context, d Deletion) error

	// Holders returns the hosts that have a session for a network, sorted by node, as
	// far as the token may see sessions. There may be some where the definition or
	// leases are lost.
	Holders(ctx context.Context, network string) ([]Holder, error)

	// WatchNetworks blocks until the networks' index differs from after and
	// returns all of them, sorted by name. after 0 answers at once.
	//
	// Only a Deletion says that a network has ended. One that the set does not have
	// was lost by the store, or the set is of an older state: Network tells which.
	WatchNetworks(ctx context.Context, after uint64) (NetworkSet, uint64, error)
}

// Leases carries the claims of hosts on slots.
type Leases interface {
	// Acquire claims a slot of n for one host, in the order Choose documents,
	// and writes the lease complete in one transaction. It is repeatable: the
	// holder calls it again to change its attributes, which writes only when
	// something differs.
	//
	// The definition has the plan of n at the moment of the claim, or cannot be
	// used, or the store has lost it. n.ModifyIndex 0 is for a version that is not known.
	//
	// Errors: ErrNetworkFull; a *RivalError of ErrDuplicateNode,
	// ErrDuplicateAddress or ErrSetBack; ErrLeasesLost for a slot that the host is not at
	// work on, see LostLeases; ErrInvalid for a claim that no host could read;
	// ErrConflict when the plan is another one now, or when other hosts were
	// faster again and again; ErrNetworkNotFound, as a *DeletedError, when the network
	// was deleted; ErrUnavailable, ErrDenied.
	Acquire(ctx context.Context, n Network, c Claim) (Lease, error)

	// Renew keeps the lease's session alive for another TTL and writes nothing
	// else. ErrLeaseLost when the session is gone.
	Renew(ctx context.Context, l Lease) error

	// Release gives the lease up: the record goes and the session ends. A lease
	// that is not the caller's any more is left alone; that is no error.
	Release(ctx context.Context, l Lease) error

	// Revoke removes the lease that covers subnet, held or lapsed, and lets its
	// host know that it is to take another slot (ErrLeaseRevoked of WatchLease).
	// ErrLeaseNotFound when there is none.
	Revoke(ctx context.Context, network string, subnet netip.Prefix) error

	// Expire removes a lapsed lease that is still exactly the version given.
	// ErrConflict when it was taken, changed or removed meanwhile.
	Expire(ctx context.Context, l Lease) error

	// WatchLease blocks until the one lease's index differs from after.
	// ErrLeaseNotFound, with a valid index, when there is no such lease;
	// ErrLeaseRevoked instead when Revoke removed it, for as long as the store
	// remembers that, a minute at least: RevokedFrom tells whose it was; ErrInvalid,
	// with a valid index, when the record cannot be used.
	WatchLease(ctx context.Context, n Network, subnet netip.Prefix, after uint64) (Lease, uint64, error)

	// WatchLeases blocks until the index of n's leases differs from after and
	// returns all of them, sorted by slot, with the records it had to skip. A
	// set that may be incomplete is ErrUncertain, never a short list: the
	// caller keeps what it has. The call after one that failed answers as soon
	// as the store does, also when nothing changed.
	//
	// after 0 reads everything anew, Known answers with what this client knows
	// already, when it knows anything. Otherwise a lapse may be shown later than
	// it happens, and a change made past this interface within a minute.
	WatchLeases(ctx context.Context, n Network, after uint64) (LeaseSet, uint64, error)
}

// Absent is the ModifyIndex of a network that PutNetwork may not put in the place of
// any record.
const Absent uint64 = math.MaxUint64

// Known is an index that no set has.
const Known uint64 = math.MaxUint64

// Reservations carries slots kept for one host for ever.
type Reservations interface {
	// AddReservation keeps a slot. Adding the same one again is no error;
	// ErrReserved when the slot is kept for somebody else or the host already
	// has another one in this network; ErrHeld, unless force is set, when
	// another live host holds a lease on it; ErrInvalid when it is not a slot
	// of n or is out of its range. Leases are left alone, forced or not.
	AddReservation(ctx context.Context, n Network, r Reservation, force bool) error

	// RemoveReservation drops it and leaves any lease alone.
	// ErrReservationNotFound when there is none.
	RemoveReservation(ctx context.Context, network string, subnet netip.Prefix) error

	// Reservations lists them sorted by slot, with the records it had to skip. For
	// a network that is not defined n has a name only: then they have no slots,
	// and are sorted by subnet.
	Reservations(ctx context.Context, n Network) (ReservationSet, error)

	// WatchReservations blocks until the index of n's reservations differs from
	// after and returns what Reservations does. after 0 answers at once. Without
	// any reservation it may return although nothing changed.
	WatchReservations(ctx context.Context, n Network, after uint64) (ReservationSet, uint64, error)
}

// Claim is what a host says of itself when it asks for a lease.
type Claim struct {
	Node      string       // node name, unique in the network
	NodeID    string       // UUID of the state directory, unique in the network
	PublicIPs []netip.Addr // underlay addresses, the first is the lease's public_ip
	MTU       int          // of the overlay, bytes
	Backend   Backend      // type and attributes peers need

	Session string        // session of an earlier process to adopt, "" for none
	Prefer  netip.Prefix  // subnet held before, invalid for none
	Running bool          // the host is at work on Prefer: it has lost the record, not the subnet
	Lately  bool          // the host held Prefer less than Hold ago, so no other host was given it
	Since   uint64        // ModifyIndex of the host's last record on Prefer, 0 when it is not known
	Avoid   netip.Prefix  // subnet that was revoked from the host, invalid for none: the last it wants
	Lost    time.Time     // when the host saw that the store had lost the network, zero for never
	TTL     time.Duration // a session lives between once and twice this after its last renewal
	Hold    time.Duration // how long a lapsed lease is kept for its host
}

// TakesBack reports whether subnet is the one that the host is at work on, or held lately.
func (c Claim) TakesBack(subnet netip.Prefix) bool {
	return (c.Running || c.Lately) && c.Prefer == subnet
}

// Announcer is the optional ability to show the agent in a service catalogue.
type Announcer interface {
	// Announce makes the catalogue show s with the verdict v. It looks first
	// and writes only on difference; call it at the start, on change, and
	// every 30 s, since catalogues forget.
	Announce(ctx context.Context, s Service, v Verdict) error
	// Withdraw removes it again; absent is no error.
	Withdraw(ctx context.Context, s Service) error
	// Doubles lists services that have the same value of one Meta entry as s under
	// another ID: what the same agent was shown as when it had another name.
	Doubles(ctx context.Context, s Service, meta string) ([]Service, error)
}

// Service is one agent in the catalogue.
type Service struct {
	Name      string     // "leno"
	ID        string     // unique on the node
	Address   netip.Addr // where others reach the agent's host; invalid for the node's own
	Port      int        // of the agent's HTTP API, 0 for none
	HealthURL string     // what the catalogue polls; "" wants a TTL check fed by Announce
	Tags      []string
	Meta      map[string]string
	// Again is when the store was last seen to be set back, and the catalogue
	// perhaps with it, though all looks right: another value registers anew. ""
	// while that has not happened.
	Again string
}

// Verdict is the agent's health as catalogues know it.
type Verdict struct {
	Status string // "passing", "warning" or "critical"
	Output string // reasons, a few lines
}

// Prober is the optional ability to tell cheaply whether the store can be used.
type Prober interface {
	// Probe asks the store something small that needs all of it: one read by
	// whoever decides, under the client's token. Errors: ErrUnavailable,
	// ErrDenied, ErrUncertain.
	Probe(ctx context.Context) error
}

// Follower is the optional ability of a client that remembers what WatchLeases answered.
type Follower interface {
	// Followed is when the store last said with certainty which leases of network
	// there are, or that nothing has changed; zero for never.
	Followed(network string) time.Time

	// Forget drops what the client remembers of the leases of a network that was deleted. If the network is defined
	// again, leases of before are not taken for ones that the store has lost.
	Forget(network string)
}

// Entitled is the optional ability to tell which rights a client has.
type Entitled interface {
	// Rights is each rule that an agent needs and whether this client's token
	// grants it, found without using it. Empty where the store has no rights.
	// ErrDenied: the store knows no such token.
	Rights(ctx context.Context, w Wish) ([]Right, error)
}

// Wish is what an agent does in a store.
type Wish struct {
	Node     string   // its name
	Named    bool     // which the store need not tell
	Networks []string // it takes part in
	Defines  []string // those of them that it puts there itself where nobody has
	Service  string   // its name in the catalogue, "" for none
}

// Right is one rule of a policy.
type Right struct {
	Rule    string // as the store writes it: `key_prefix "leno/leases/" { policy = "write" }`
	For     string // what it is needed for: "to write this host's lease"
	Granted bool
}

// NodeNamer is the optional ability to tell the store's name of this host.
type NodeNamer interface {
	// NodeName returns the name, or "" when the store's own agent is not on
	// this host and so says nothing about it.
	NodeName(ctx context.Context) (string, error)
}

// Sweeper is the optional ability to find what one host has in the store,
// whatever became of its own memory of it.
type Sweeper interface {
	// Left is what names the host in one network, or in all of them with network
	// "", also in networks that are gone. What may be incomplete is ErrUncertain.
	Left(ctx context.Context, network string, h Host) (Left, error)

	// EndSession ends a session that holds no lease; one that is gone is no error.
	EndSession(ctx context.Context, id string) error

	// Shown is the service of that ID as the catalogue has it; false when it has
	// none.
	Shown(ctx context.Context, id string) (Service, bool, error)
}

// Host is by what a store knows one host.
type Host struct {
	Node     string   // name, "" when it is not known
	NodeID   string   // "" when it is not known
	Sessions []string // that it remembers
}

// Left is what a host has in a store.
type Left struct {
	// Leases name the node or the node id, or are locked with one of the sessions.
	// The records may be unusable: only network, the first subnet and the session
	// are certain, the rest is as far as it can be read.
	Leases []Lease
	// Sessions hold no lease, and bear the host's name or are among those that it
	// remembers.
	Sessions []string
}
