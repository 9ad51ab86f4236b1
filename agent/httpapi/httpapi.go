// Package httpapi serves the agent's HTTP API and its status page.
//
// It owns the listener, the limits for clients, blocking reads and the shape of requests and answers. What the agent
// does and knows is behind two interfaces, Agent and Network. The name differs from net/http's because nearly every
// file needs both.
package httpapi

import (
	"context"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
)

// An Agent is what the API shows of an agent and asks it to do. All methods may be called concurrently. Channels are
// closed at the next change of what was returned with them.
type Agent interface {
	Self() api.Self
	Config() config.Config // in force
	Configuration() api.Configuration

	// Refresh reads the configuration's files again and takes them over. With force it also accepts files that look
	// cut off.
	Refresh(ctx context.Context, force bool) (api.Reloaded, error)

	// Diagnose examines this host. It fails with an *api.Error while another examination runs.
	Diagnose(ctx context.Context, o api.DoctorOptions) (api.Diagnosis, error)

	// Trace follows packets between two addresses through this host. It fails with an *api.Error if it cannot.
	Trace(ctx context.Context, r api.TraceRequest) (api.Trace, error)

	// Events returns the events after an index, oldest first, and the index of the last one. An empty network selects
	// all events.
	Events(after uint64, network string) (events []api.Event, last uint64, changed <-chan struct{})

	// Networks returns the networks in the store as they were read last, without asking the store.
	Networks() (known Networks, changed <-chan struct{})

	// Network returns this host's part in a network, and reports whether it takes part.
	Network(name string) (Network, bool)

	// Joined returns a channel that is closed when this host joins or leaves a network.
	Joined() <-chan struct{}

	// StatusChanged returns a channel that is closed when the Status of some network may have changed.
	StatusChanged() <-chan struct{}

	// LeasesElsewhere returns the leases of a network in which this host takes no part, and their index. If after is
	// 0, they are a few seconds old at most. Otherwise it blocks until the store has another index than after.
	LeasesElsewhere(ctx context.Context, n registry.Network, after uint64) (registry.LeaseSet, uint64, error)

	// InvalidateLeases makes the next reader of a network's leases see what the store has now.
	InvalidateLeases(network string)

	// WatchReservations returns the reservations of a network, and their index, as soon as the store has another
	// index than after.
	WatchReservations(ctx context.Context, n registry.Network, after uint64) (registry.ReservationSet, uint64, error)
}

// A Network is this host's part in a network. All methods may be called concurrently.
type Network interface {
	// Status returns the network's state. It is cheap.
	Status() Status

	// Judge returns what the store's answer, when it was asked for the definition, means for the one in force. It returns
	// NoAnswer if none is.
	Judge(stored registry.Network, err error) belief.Verdict

	// Resumed returns what the datapath of an earlier process was resumed from, and reports false once the store has
	// confirmed or refused it.
	Resumed() (Resumed, bool)

	// RefreshLeases reads the leases unless that was done a moment ago. It returns when they are read, or when the
	// store takes too long.
	RefreshLeases(ctx context.Context, n registry.Network)

	// Leases returns all leases without asking the store: as they were read last or, if watched is true, as the watch
	// that the datapath goes by read them last. The error says why none are known.
	Leases(watched bool) (registry.LeaseSet, error)

	// LeasesChanged returns channels of which one is closed when Leases may return something else.
	LeasesChanged() []<-chan struct{}

	// Peers returns the other hosts as the datapath has them, in the order of their names, with their counters, and with
	// the history of the paths to them if it is asked for.
	Peers(withHistory bool) api.PeerList

	// Hosts returns all hosts of the network with what this one knows of them, those with a problem first. The error says
	// why none are known.
	Hosts() ([]api.Host, error)

	// Probe sends packets to peers. It fails with an *api.Error when that cannot be done now.
	Probe(ctx context.Context, r api.ProbeRequest) (api.Probe, error)

	// Renew renews the session of this host's lease with the store of the caller.
	Renew(ctx context.Context, store registry.Registry) (api.Renewal, error)

	// Release gives this host's lease up with the store of the caller and leaves the network.
	Release(ctx context.Context, store registry.Registry) error
}

// Networks are all networks in the store.
type Networks struct {
	registry.NetworkSet
	Index uint64 // of the store
	Read  bool   // false until the store has been read
}

// Status is the state of a network on this host.
type Status struct {
	Definition   registry.Network // in force, if Defined
	Defined      bool
	Local        api.Local
	Lease        registry.Lease // of this host; zero if it holds none
	Reservations []registry.Reservation
}

// Resumed is what the files of an earlier process say of a network.
type Resumed struct {
	Definition registry.Network
	Leases     []registry.Lease // of the other hosts at least
	Lease      registry.Lease   // of this host
}
