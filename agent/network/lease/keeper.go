// Package lease keeps this host's lease in one network: it claims a subnet, renews the session, watches the record,
// takes the lease back when it is lost, and releases it on request. It resolves conflicts with other hosts about the
// record.
//
// It knows nothing of the datapath, which stays whatever happens to the lease, and nothing of the leases of other
// hosts.
package lease

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
)

// callTimeout bounds one short request to the store.
const callTimeout = retry.CallTimeout

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

	// Networks returns a channel that is closed when the networks in the store have changed. A claim that waits is then
	// tried again.
	Networks func() <-chan struct{}

	// Resumed returns the datapath that stays in use without a lease, as long as the store has neither confirmed nor
	// refused it: its subnet, and what ends "10.5.1.0/24 stays in use as", for example "before the reload". It is
	// called while the Keeper holds a lock, so it may only call Lease.
	Resumed func() (subnet netip.Prefix, as string, ok bool)

	// Answered is called when the store has refused a claim, so that what Resumed returns is settled.
	Answered func()

	// Save writes a lease down for the next process, because this process is about to end (on_lost = "exit").
	Save func(registry.Network, registry.Lease) error
}

// A Keeper keeps one lease of this host in one network. It is safe for concurrent use, with one exception: Acquire and
// Keep must not run at the same time.
//
// A caller runs RenewSession for as long as it uses the Keeper. In each round it runs ServeReleases, calls Acquire with
// claims from Claim, passes the granted one to SetClaim and then runs Keep. It calls SetClaim again when the host's
// attributes change. After ErrReleased it removes the datapath and calls Reset, ConfirmRelease and RefuseReleases.
type Keeper struct {
	o          Options
	report     *report.Reporter
	lease      *watch.Value[registry.Lease]
	claim      *watch.Value[registry.Claim]
	ended      *watch.Value[string]    // the session that was last found to have ended
	storeLoss  *watch.Value[time.Time] // when the store was last found to have lost the network
	condition  condition
	conflicts  conflicts
	revocation revocation
	releases   releases
}

// New returns a Keeper that holds no lease.
func New(o Options) *Keeper {
	lease := watch.New[registry.Lease]()
	return &Keeper{
		o:         o,
		report:    o.Report,
		lease:     lease,
		claim:     watch.New[registry.Claim](),
		ended:     watch.New[string](),
		storeLoss: watch.New[time.Time](),
		conflicts: conflicts{report: o.Report, reasons: map[string]string{}},
		releases:  newReleases(),
		revocation: revocation{
			report:   o.Report,
			registry: o.Registry,
			state:    o.State,
			identity: o.Identity,
		},
		condition: condition{report: o.Report, lease: lease, resumed: o.Resumed},
	}
}

// Lease returns the lease that this host holds, as it was last written. A lease that was lost counts as held until
// Reset or Retire, because the containers still use its subnet. Only the Keeper sets the value.
func (k *Keeper) Lease() *watch.Value[registry.Lease] { return k.lease }

// SetClaim replaces the claim that Keep keeps written in the store.
func (k *Keeper) SetClaim(c registry.Claim) { k.claim.Set(c) }

// Keep holds the lease that Acquire returned for claim: it watches the record, rewrites it after SetClaim, and takes
// the lease back whenever it is lost. It blocks until ctx ends, the lease is released by request (ErrReleased), or
// another subnet ends the process (*LostError).
func (k *Keeper) Keep(ctx context.Context, n registry.Network, lease registry.Lease, claim registry.Claim) error {
	backoff := k.o.Outage.NewLoop()
	for {
		now, _, changed := k.claim.Get()
		if reflect.DeepEqual(now, claim) {
			reason, err := k.hold(ctx, n, lease, changed)
			if err != nil {
				return err
			}
			if reason != "" {
				k.reportLoss(lease, reason)
				k.report.Count(telemetry.LeaseLosses, 1)
				// The pause avoids a race with another host that takes the lease again and again.
				if err := backoff.Wait(ctx, nil, nil); err != nil {
					return err
				}
			}
		}
		next, err := k.Acquire(ctx, n, func() registry.Claim {
			claim, _, _ = k.claim.Get()
			mine := claim
			mine.Session, mine.Prefer, mine.Since = lease.Session, lease.Subnet(), lease.ModifyIndex
			mine.Running = true
			return mine
		})
		if err != nil {
			return err
		}
		if next.Slot != lease.Slot {
			if err := k.Moved(n, lease.Subnet(), next); err != nil {
				return err
			}
		}
		lease = next
	}
}

// Retire gives up a lease whose subnets are not a slot of n's plan, because it belongs to another definition. Such a
// lease would block other leases forever. before is what an earlier process held, which counts if this one holds no
// lease.
func (k *Keeper) Retire(ctx context.Context, n registry.Network, before state.Network) error {
	lease := k.heldOrBefore(before)
	if lease.Session == "" || isSlotOf(n.Plan, lease) {
		return nil
	}
	k.report.Log().Warn("subnet is none of the network's any more, giving it up", "subnet", lease.Subnet())
	if err := k.GiveUp(ctx, before); err != nil {
		return fmt.Errorf("give up %s: %w", lease.Subnet(), err)
	}
	k.lease.Clear()
	k.report.Changed()
	return nil
}

// GiveUp releases the lease that this host holds, or else the one that an earlier process held before. It does nothing
// if there is none. The value of Lease stays until Reset.
func (k *Keeper) GiveUp(ctx context.Context, before state.Network) error {
	lease := k.heldOrBefore(before)
	if lease.Session == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return k.o.Registry.Release(ctx, lease)
}

// heldOrBefore returns the lease that this host holds, or else the one of an earlier process, which this one has not
// taken over. The latter may be empty.
func (k *Keeper) heldOrBefore(before state.Network) registry.Lease {
	if lease, held, _ := k.lease.Get(); held {
		return lease
	}
	return before.LeaseOf(k.o.Identity())
}

// Reset forgets the lease and every problem with it, because this host has left the network. It reports nothing. What
// is known of the store stays: a revocation, a loss of the network and a release by request.
func (k *Keeper) Reset() {
	k.lease.Clear()
	k.condition.reset()
	k.conflicts.reset()
}
