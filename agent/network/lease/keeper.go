// Package lease keeps this host's lease in one network: it claims a subnet, renews the session, watches the record,
// takes the lease back when it is lost, and releases it on request. It resolves conflicts with other hosts about the
// record.
//
// It knows nothing of the leases of other hosts, and nothing of the datapath. That stays whatever happens to the lease,
// with one exception: if the store shows that another live host has the subnet, or the definition excludes it, Acquire,
// Keep and Retire return a *WithdrawnError, and their caller withdraws the subnet.
package lease

import (
	"net/http"
	"net/netip"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// callTimeout bounds one short request to the store.
const callTimeout = retry.CallTimeout

// claimTimeout bounds one claim, which may read the leases of a large network or have to choose again. The store gives
// up each of its requests that makes no progress, and a claim that is given up must be paid for again.
const claimTimeout = 2 * time.Minute

// Options are what New builds a Keeper from. All fields are required. The functions must not wait for a goroutine that
// uses the Keeper.
type Options struct {
	Network    string
	SubnetFile string // path of the subnet file, whose subnet is asked for if the state file has none
	Settings   config.Lease
	Identity   func() state.Identity // is not called before the first use of the store
	Registry   registry.Registry
	Outage     *retry.OutageDetector
	State      *state.File
	Former     *state.FormerSubnets
	Report     *report.Reporter
	Wall       func() time.Time // reads the wall clock; nil for time.Now

	// Networks returns a channel that is closed when the networks in the store have changed. A claim that waits is then
	// tried again.
	Networks func() <-chan struct{}

	// Resumed returns the subnet that stays in use without a lease, as long as the store has neither confirmed nor refused
	// it. It is called while the Keeper holds a lock, so it may only call Lease.
	Resumed func() Resumed

	// Answered is called when the store has refused a claim, so that what Resumed returns is settled.
	Answered func()

	// Save writes a lease down for the next process, because this process is about to end (on_lost = "exit").
	Save func(registry.Network, registry.Lease) error
}

// A Keeper keeps one lease of this host in one network. It is safe for concurrent use, with one exception: Acquire and
// Keep must not run at the same time.
//
// A caller runs RenewSession for as long as it uses the Keeper. In each round, which lasts UntilReleased, it calls
// Acquire with claims from Claim, passes the granted one to SetClaim and then runs Keep. It calls SetClaim again when
// the host's attributes change. After a release it removes the datapath and calls Reset and ConfirmRelease.
type Keeper struct {
	o          Options
	report     *report.Reporter
	lease      *watch.Value[registry.Lease]
	claim      *watch.Value[registry.Claim]
	ended      *watch.Value[string] // the session that was last found to have ended
	loss       *watch.Value[storeLoss]
	outcome    *watch.Value[error] // see Outcome
	condition  condition
	revocation revocation
	releases   releases
}

// New returns a Keeper that holds no lease.
func New(o Options) *Keeper {
	lease := watch.New[registry.Lease]()
	return &Keeper{
		o:        o,
		report:   o.Report,
		lease:    lease,
		claim:    watch.New[registry.Claim](),
		ended:    watch.New[string](),
		loss:     watch.New[storeLoss](),
		outcome:  watch.New[error](),
		releases: newReleases(),
		revocation: revocation{
			report:   o.Report,
			registry: o.Registry,
			state:    o.State,
			identity: o.Identity,
			revoked:  watch.New[netip.Prefix](),
		},
		condition: condition{
			report:     o.Report,
			lease:      lease,
			hold:       o.Settings.Hold,
			resumed:    o.Resumed,
			suspicions: map[string]Suspicion{},
		},
	}
}

// Lease returns the lease that this host holds, as it was last written. A lease that was lost counts as held until
// Reset, because the containers still use its subnet, or until this host must not use it any more. Only the Keeper sets
// the value.
func (k *Keeper) Lease() *watch.Value[registry.Lease] { return k.lease }

// Status returns how the lease is. It does not block.
func (k *Keeper) Status() Status {
	lease, _, _ := k.lease.Get()
	k.condition.mu.Lock()
	defer k.condition.mu.Unlock()
	return Status{
		State:   k.condition.stateLocked(),
		Lease:   lease,
		Renewed: k.condition.renewed,
		Problem: k.condition.problem,
		Revoked: k.revocation.subnet(),
	}
}

// SetClaim replaces the claim that Keep keeps written in the store.
func (k *Keeper) SetClaim(c registry.Claim) { k.claim.Set(c) }

// SetLimit replaces why some hosts cannot use the lease, which the check says while it is held; "" if all can.
func (k *Keeper) SetLimit(reason string) { k.condition.setLimit(reason) }

// Reset forgets the lease and every problem with it, because this host has left the network. It reports nothing. What
// is known of the store stays: a revocation, a loss of the network and a release by request.
func (k *Keeper) Reset() {
	k.lease.Clear()
	k.condition.reset()
}

// noLease returns the refusal of a request to "renew" or "release" a lease that this host does not hold.
func noLease(network, verb, state string) error {
	return api.Errorf(http.StatusConflict, "network %s: this host holds no lease to %s: %s", network, verb, state)
}
