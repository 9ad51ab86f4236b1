package network

import (
	"context"
	"net/netip"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/events"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/rules"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
)

// callTimeout bounds one short request to the store.
const callTimeout = retry.CallTimeout

// Deps are what all networks of an agent share.
type Deps struct {
	Log       hclog.Logger
	Identity  *Identity
	Store     Store
	Reports   Reports
	Rules     Rules
	Datapaths *datapath.Host
	Claims    *HostClaims
	Former    *state.FormerSubnets
	Left      *watch.Value[struct{}] // set when a runner has left a network that was deleted

	// ReadKernelState returns what the kernel has of a network's datapath: its device link, and its routes in pools.
	ReadKernelState func(ctx context.Context, link string, pools []netip.Prefix) (datapath.KernelState, error)
	// SubnetFileOf returns the network of this host, other than except, whose subnet file is at path, or "" if there is
	// none.
	SubnetFileOf func(path, except string) string
}

// A Store is where networks, leases and reservations are kept.
type Store struct {
	Kind     string // such as config.StoreConsul
	Registry registry.Registry
	Outage   *retry.OutageDetector
	Networks *watch.Value[Networks]
	SetBack  *watch.Value[struct{}] // set when the store was emptied or set back to an older state
}

// Networks holds all networks of the store, as read last.
type Networks struct {
	Set   registry.NetworkSet
	Index uint64
}

// Reports are where networks report what happens to them.
type Reports struct {
	Health    *health.Board
	Events    *events.Log
	Telemetry *telemetry.Telemetry
	Changed   *watch.Value[struct{}] // set when the API may show this host's part in some network differently
}

// reporter returns the reporter of a network. flows reports whether its packets flow.
func (d *Deps) reporter(network string, flows func() bool) *report.Reporter {
	return report.New(report.Options{
		Network:   network,
		Store:     d.Store.Kind,
		Log:       d.Log.With("network", network),
		Health:    d.Reports.Health,
		Events:    d.Reports.Events,
		Telemetry: d.Reports.Telemetry,
		Changed:   d.Reports.Changed,
		Flows:     flows,
	})
}

// Rules are the firewall rules of this host.
type Rules struct {
	Keeper  *rules.Keeper
	Foreign *rules.ForeignMonitor
}

// An Identity is this host's name and id, which may become known only after a while. It is safe for concurrent use.
type Identity struct {
	known   *watch.Value[state.Identity]
	settled chan struct{}
}

// NewIdentity returns an Identity of which nothing is known.
func NewIdentity() *Identity {
	return &Identity{known: watch.New[state.Identity](), settled: make(chan struct{})}
}

// Get returns what is known: fields may be "".
func (i *Identity) Get() state.Identity {
	now, _, _ := i.known.Get()
	return now
}

// NodeID returns the host's id, "" if it is not known.
func (i *Identity) NodeID() string { return i.Get().NodeID }

// SetNode sets the host's name.
func (i *Identity) SetNode(name string) {
	i.known.Update(func(now *state.Identity) { now.Node = name })
}

// SetNodeID sets the host's id.
func (i *Identity) SetNodeID(id string) {
	i.known.Update(func(now *state.Identity) { now.NodeID = id })
}

// Settle records that name and id are known and stay. It must be called once.
func (i *Identity) Settle() { close(i.settled) }

// Settled returns a channel that is closed by Settle. Networks do not use the store before that.
func (i *Identity) Settled() <-chan struct{} { return i.settled }

// IsSettled reports whether Settle was called.
func (i *Identity) IsSettled() bool {
	select {
	case <-i.settled:
		return true
	default:
		return false
	}
}
