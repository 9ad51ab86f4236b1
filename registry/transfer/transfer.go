// Package transfer copies networks with their reservations and leases from one store to another, so that the hosts of a
// network can be moved to the other store one by one, each with its subnet.
//
// A lease is copied by a claim on behalf of its host, which is never renewed. So the copy lapses, and stays for the
// claim's hold: the hosts that use the other store have a route to its subnet, and its host takes it back by its node
// id when it changes to that store. The leases of the source are only read.
//
// The package knows the contract of package registry, and no particular store.
package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/registry"
)

// claimTTL is the shortest time to live that every store accepts for a session.
const claimTTL = 10 * time.Second

// Options select what is copied, and how.
type Options struct {
	Networks []string      // names, all networks if empty
	Hold     time.Duration // how long the copy of a lease is kept for its host
	DryRun   bool          // only read

	WithoutForeign bool // copy the rest if there are leases of hosts that do not run leno and so cannot move

	// Normalize returns a backend with its defaults, so that definitions that mean the same are equal. It may be nil.
	Normalize func(registry.Backend) registry.Backend
}

// Result tells what became of one network, reservation or lease.
type Result string

// Results. In a dry run there is ToCopy in place of Copied.
const (
	ToCopy  Result = "to-copy" // is not in the destination yet
	Copied  Result = "copied"  // was written by this call
	Present Result = "present" // was in the destination before
	Skipped Result = "skipped" // is left out on purpose, for a reason
	Failed  Result = "failed"  // could not be copied, for a reason
)

// Outcome tells what became of one object.
type Outcome struct {
	Result Result `json:"result"`
	Reason string `json:"reason"`
}

var toCopy = Outcome{Result: ToCopy}

// skip leaves out an object that was to be copied.
func (o *Outcome) skip(reason string) {
	if o.Result == ToCopy {
		o.Result, o.Reason = Skipped, reason
	}
}

// fail notes why an object could not be copied. It returns err if it would also be the answer to all further requests.
func (o *Outcome) fail(ctx context.Context, err error) error {
	o.Result, o.Reason = Failed, err.Error()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, lasting := range []error{registry.ErrUnavailable, registry.ErrDenied, registry.ErrUncertain} {
		if errors.Is(err, lasting) {
			return fmt.Errorf("destination: %w", err)
		}
	}
	return nil
}

// Report tells what was copied, or what a dry run would copy.
type Report struct {
	DryRun   bool      `json:"dry_run"`
	Hold     string    `json:"hold"` // such as "24h0m0s"
	Networks []Network `json:"networks"`
	Records  []Record  `json:"records"` // deletions and unusable records, which are not copied
}

// Network is the part of a Report about one network.
type Network struct {
	Name string `json:"name"`
	Outcome
	Reservations []Reservation `json:"reservations"`
	Leases       []Lease       `json:"leases"`

	source, there registry.Network // there is the zero value if the destination has no definition
	obsolete      []registry.Lease // lapsed leases in the destination, of hosts that hold other slots in the source
}

// Reservation is the part of a Report about one reservation.
type Reservation struct {
	Subnet string `json:"subnet"`
	Host   string `json:"host"` // such as `node "host-a"`
	Outcome

	source registry.Reservation
	after  string // the subnet of another host's lease on the slot: that lease is copied first
}

// Lease is the part of a Report about one lease.
type Lease struct {
	Subnet string `json:"subnet"`
	Node   string `json:"node"`
	NodeID string `json:"node_id"`
	Outcome

	source  registry.Lease
	foreign bool
}

// Record is a record that is not copied.
type Record struct {
	Network string `json:"network"` // "" if the record does not belong to a network
	Key     string `json:"key"`     // "" for the deletion of a network
	Outcome        // Skipped for a deletion, Failed for an unusable record
}

// Failures returns the number of objects that could not be copied.
func (r Report) Failures() (n int) {
	count := func(result Result) {
		if result == Failed {
			n++
		}
	}
	for _, each := range r.Networks {
		count(each.Result)
		for _, reservation := range each.Reservations {
			count(reservation.Result)
		}
		for _, lease := range each.Leases {
			count(lease.Result)
		}
	}
	for _, record := range r.Records {
		count(record.Result)
	}
	return n
}

// A ForeignError means that nothing was copied, because hosts that do not run leno cannot move.
type ForeignError struct {
	Subnets []string // of their leases, such as "10.5.34.0/24"
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("the hosts with the leases %s do not run leno and cannot move", strings.Join(e.Subnets, ", "))
}

// Copy copies networks, reservations and leases. It may be repeated at any time: what is in the destination already
// stays as it is, except that a lapsed copy of a lease is kept for its host for another Hold.
//
// The report is complete even if there is an error, and an object that could not be copied is no error: see
// Report.Failures. Errors: a *ForeignError; registry.ErrNetworkNotFound for a name in Options.Networks; errors of a
// store, after which nothing else was tried.
func Copy(ctx context.Context, from, to registry.Registry, o Options) (Report, error) {
	c := &copier{from: from, to: to, o: o}
	report := Report{DryRun: o.DryRun, Hold: o.Hold.String(), Networks: []Network{}, Records: []Record{}}
	if err := c.plan(ctx, &report); err != nil {
		return report, err
	}
	foreign := &ForeignError{}
	for _, n := range report.Networks {
		for _, l := range n.Leases {
			if l.foreign {
				foreign.Subnets = append(foreign.Subnets, l.Subnet)
			}
		}
	}
	if len(foreign.Subnets) > 0 && !o.WithoutForeign {
		return report, foreign
	}
	if o.DryRun {
		return report, nil
	}
	for i := range report.Networks {
		if err := c.apply(ctx, &report.Networks[i]); err != nil {
			return report, err
		}
	}
	return report, nil
}

// copier is one call of Copy.
type copier struct {
	from, to registry.Registry
	o        Options
}

// claim returns the claim on behalf of a lease's host.
func (c *copier) claim(l registry.Lease) registry.Claim {
	return registry.Claim{
		Node:      l.Node,
		NodeID:    l.NodeID,
		PublicIPs: l.PublicIPs,
		MTU:       l.MTU,
		Backend:   l.Backend,
		Prefer:    l.Subnet(),
		Running:   true,
		TTL:       claimTTL,
		Hold:      c.o.Hold,
		OnlySlot:  true,
	}
}

// isWanted reports whether the network is to be copied.
func (c *copier) isWanted(name string) bool {
	return len(c.o.Networks) == 0 || slices.Contains(c.o.Networks, name)
}
