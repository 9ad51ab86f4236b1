package flannel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// Existing is what leno already has of a network.
type Existing struct {
	Network      *registry.Network // nil for none
	Reservations []api.Reservation
	Leases       []api.Lease
}

// ReadExisting asks the agent for what there is of the network.
func ReadExisting(ctx context.Context, c *api.Client, network string) (Existing, error) {
	n, err := c.Network(ctx, network)
	var missing *api.Error
	if errors.As(err, &missing) && missing.Code == http.StatusNotFound {
		// An interrupted import may have left some.
		left, err := c.Reservations(ctx, network)
		if errors.As(err, &missing) && missing.Code == http.StatusNotFound {
			err = nil
		}
		return Existing{Reservations: left.Reservations}, err
	}
	if err != nil {
		return Existing{}, err
	}
	e := Existing{Network: &registry.Network{Name: n.Name, ModifyIndex: n.ModifyIndex}}
	for _, pool := range n.Pools {
		e.Network.Plan = append(e.Network.Plan, registry.Pool(pool))
	}
	if err := json.Unmarshal(n.Backend, &e.Network.Backend); err != nil {
		return e, fmt.Errorf("network %s: %w", n.Name, err)
	}
	reservations, err := c.Reservations(ctx, n.Name)
	if err != nil {
		return e, err
	}
	leases, err := c.Leases(ctx, n.Name)
	e.Reservations, e.Leases = reservations.Reservations, leases.Leases
	return e, err
}

// Plan is what an import does, and the output of `leno network import -format=json`.
type Plan struct {
	Network      string               `json:"network"`
	Action       string               `json:"action"` // create, or none for an existing network
	Pools        []api.Pool           `json:"pools"`
	Backend      json.RawMessage      `json:"backend"`
	DryRun       bool                 `json:"dry_run"`
	Reservations []PlannedReservation `json:"reservations"`
	Skipped      []api.Skipped        `json:"skipped"`
	Notes        []string             `json:"notes"`
}

// PlannedReservation is a reservation that an import makes or has found.
type PlannedReservation struct {
	Subnet   netip.Prefix `json:"subnet"`
	Node     string       `json:"node"`
	PublicIP netip.Addr   `json:"public_ip"`
	Action   string       `json:"action"` // create, or none for an existing reservation
}

// NewPlan compares an import with what exists. The plan does not touch anything that another host
// has or is to get.
func NewPlan(in Import, have Existing, dryRun bool) Plan {
	p := Plan{
		Network:      in.Network.Name,
		Action:       api.ActionCreate,
		Pools:        []api.Pool{},
		Backend:      json.RawMessage(in.Network.Backend.Object),
		DryRun:       dryRun,
		Reservations: []PlannedReservation{},
		Skipped:      append([]api.Skipped{}, in.Skipped...),
		Notes:        append([]string{}, in.Notes...),
	}
	for _, pool := range in.Network.Plan {
		p.Pools = append(p.Pools, api.Pool(pool))
	}
	if have.Network != nil {
		p.Action = api.ActionNone
	}
	p.Notes = append(p.Notes, have.unknownToFlannel(in)...)
	for _, r := range in.Reservations {
		action, why := have.action(in.Network.Name, r)
		if why != "" {
			p.Skipped = append(p.Skipped, api.Skipped{Key: r.Key, Reason: why})
			continue
		}
		p.Reservations = append(p.Reservations, PlannedReservation{Subnet: r.Subnet, Node: r.Node, PublicIP: r.PublicIP,
			Action: action})
		i := slices.IndexFunc(have.Leases, func(l api.Lease) bool { return l.Node == r.Node && l.Subnet != r.Subnet })
		if i >= 0 {
			p.Notes = append(p.Notes,
				fmt.Sprintf("host %s has %s in leno now, and takes %s when that lease is gone: `leno lease revoke %s %s`",
					r.Node, have.Leases[i].Subnet, r.Subnet, in.Network.Name, have.Leases[i].Subnet))
		}
	}
	return p
}

// unknownToFlannel returns the reservations that exist without the network and that flannel does not have.
func (e Existing) unknownToFlannel(in Import) []string {
	var out []string
	if e.Network != nil {
		return nil
	}
	for _, have := range e.Reservations {
		if !slices.ContainsFunc(in.Reservations, func(r Reservation) bool { return r.Subnet == have.Subnet || r.Node == have.Node }) {
			out = append(out,
				fmt.Sprintf("leno keeps %s for %s already, which flannel does not have: `leno reservation remove %s %s` drops that",
					have.Subnet, have.Host(), in.Network.Name, have.Subnet))
		}
	}
	return out
}

// action returns the action for a reservation, or why it cannot be made.
func (e Existing) action(network string, r Reservation) (action, why string) {
	for _, have := range e.Reservations {
		drop := fmt.Sprintf("`leno reservation remove %s %s` drops that", network, have.Subnet)
		switch {
		case have.Subnet == r.Subnet && have.Node == r.Node:
			return api.ActionNone, ""
		case have.Subnet == r.Subnet:
			return "", fmt.Sprintf("leno keeps %s for %s already, and flannel has it for %s: %s", r.Subnet, have.Host(), r.Node,
				drop)
		case have.Node == r.Node:
			return "", fmt.Sprintf("leno keeps %s for %s already, and flannel has %s: %s", have.Subnet, r.Node, r.Subnet, drop)
		}
	}
	for _, l := range e.Leases {
		if l.Subnet == r.Subnet && l.Held && l.Node != r.Node {
			return "", fmt.Sprintf("%s holds %s in leno, and flannel has it for %s: `leno lease revoke %s %s` takes it away",
				l.Node, l.Subnet, r.Node, network, l.Subnet)
		}
	}
	return api.ActionCreate, ""
}

// definition returns the network to create.
func (p Plan) definition() api.Network {
	return api.Network{Name: p.Network, Pools: p.Pools, Backend: p.Backend}
}

// Check asks the agent whether the network may be created, also in a dry run.
func (p Plan) Check(ctx context.Context, c *api.Client) error {
	if p.Action != api.ActionCreate {
		return nil
	}
	plan, err := c.PlanNetwork(ctx, p.definition())
	if err != nil {
		return fmt.Errorf("network %s: %w", p.Network, err)
	}
	var errs []error
	for _, r := range plan.Refused {
		errs = append(errs, fmt.Errorf("network %s cannot be created: %s; instead, %s", p.Network, r.Reason, r.Way))
	}
	return errors.Join(errs...)
}

// Apply executes the plan, and removes from it what could not be done.
func (p *Plan) Apply(ctx context.Context, c *api.Client) error {
	if p.Action == api.ActionCreate {
		var all []api.Reservation
		for _, r := range p.Reservations {
			all = append(all, api.Reservation{Subnet: r.Subnet, Node: r.Node})
		}
		stored, err := c.PutNetwork(ctx, p.definition(), false, all...)
		if err != nil {
			return fmt.Errorf("network %s: %w", p.Network, err)
		}
		p.Pools, p.Backend = stored.Pools, stored.Backend // with all defaults
		return nil
	}
	var errs []error
	p.Reservations = slices.DeleteFunc(p.Reservations, func(r PlannedReservation) bool {
		if r.Action == api.ActionNone {
			return false
		}
		err := c.AddReservation(ctx, p.Network, api.Reservation{Subnet: r.Subnet, Node: r.Node}, false)
		errs = append(errs, err)
		return err != nil
	})
	return errors.Join(errs...)
}
