package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/flannel"
)

// importOutput is the output of `leno network import -format=json`.
type importOutput struct {
	Network      string                `json:"network"`
	Action       string                `json:"action"` // create, or none for an existing network
	Pools        []api.Pool            `json:"pools"`
	Backend      json.RawMessage       `json:"backend"`
	DryRun       bool                  `json:"dry_run"`
	Reservations []importedReservation `json:"reservations"`
	Skipped      []api.Skipped         `json:"skipped"`
	Notes        []string              `json:"notes"`
}

type importedReservation struct {
	Subnet   netip.Prefix `json:"subnet"`
	Node     string       `json:"node"`
	PublicIP netip.Addr   `json:"public_ip"`
	Action   string       `json:"action"` // create, or none for an existing reservation
}

// importPlan describes what an import does.
type importPlan struct{ importOutput }

// planImport compares the import with what exists. It does not touch anything that another host
// has or is to get.
func planImport(in flannel.Import, there present, dryRun bool) importPlan {
	p := importPlan{importOutput{
		Network: in.Network.Name, Action: api.ActionCreate, Pools: []api.Pool{}, Backend: json.RawMessage(in.Network.Backend.Object), DryRun: dryRun,
		Reservations: []importedReservation{}, Skipped: append([]api.Skipped{}, in.Skipped...), Notes: append([]string{}, in.Notes...)}}
	for _, pool := range in.Network.Plan {
		p.Pools = append(p.Pools, api.Pool(pool))
	}
	if there.network != nil {
		p.Action = api.ActionNone
	}
	p.Notes = append(p.Notes, there.beside(in)...)
	for _, r := range in.Reservations {
		action, why := there.hinders(in.Network.Name, r)
		if why != "" {
			p.Skipped = append(p.Skipped, api.Skipped{Key: r.Key, Reason: why})
			continue
		}
		p.Reservations = append(p.Reservations, importedReservation{Subnet: r.Subnet, Node: r.Node, PublicIP: r.PublicIP, Action: action})
		i := slices.IndexFunc(there.leases, func(l api.Lease) bool { return l.Node == r.Node && l.Subnet != r.Subnet })
		if i >= 0 {
			p.Notes = append(p.Notes, fmt.Sprintf("host %s has %s in leno now, and takes %s when that lease is gone: `leno lease revoke %s %s`",
				r.Node, there.leases[i].Subnet, r.Subnet, in.Network.Name, there.leases[i].Subnet))
		}
	}
	return p
}

// beside returns the reservations that exist without the network and that flannel does not have.
func (p present) beside(in flannel.Import) []string {
	var out []string
	if p.network != nil {
		return nil
	}
	for _, have := range p.reservations {
		if !slices.ContainsFunc(in.Reservations, func(r flannel.Reservation) bool { return r.Subnet == have.Subnet || r.Node == have.Node }) {
			out = append(out, fmt.Sprintf("leno keeps %s for %s already, which flannel does not have: `leno reservation remove %s %s` drops that",
				have.Subnet, keptFor(have), in.Network.Name, have.Subnet))
		}
	}
	return out
}

// hinders returns the action for a reservation, or why it cannot be made.
func (p present) hinders(network string, r flannel.Reservation) (action, why string) {
	for _, have := range p.reservations {
		drop := fmt.Sprintf("`leno reservation remove %s %s` drops that", network, have.Subnet)
		switch {
		case have.Subnet == r.Subnet && have.Node == r.Node:
			return api.ActionNone, ""
		case have.Subnet == r.Subnet:
			return "", fmt.Sprintf("leno keeps %s for %s already, and flannel has it for %s: %s", r.Subnet, keptFor(have), r.Node, drop)
		case have.Node == r.Node:
			return "", fmt.Sprintf("leno keeps %s for %s already, and flannel has %s: %s", have.Subnet, r.Node, r.Subnet, drop)
		}
	}
	for _, l := range p.leases {
		if l.Subnet == r.Subnet && l.Held && l.Node != r.Node {
			return "", fmt.Sprintf("%s holds %s in leno, and flannel has it for %s: `leno lease revoke %s %s` takes it away", l.Node, l.Subnet, r.Node, network, l.Subnet)
		}
	}
	return api.ActionCreate, ""
}

// definition returns the network to create.
func (p importPlan) definition() api.Network {
	return api.Network{Name: p.Network, Pools: p.Pools, Backend: p.Backend}
}

// allowed asks the agent whether the network may be created, also in a dry run.
func (p importPlan) allowed(ctx context.Context, c *api.Client) error {
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

// carryOut executes the plan, and removes from it what could not be done.
func (p *importPlan) carryOut(ctx context.Context, c *api.Client) error {
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
	p.Reservations = slices.DeleteFunc(p.Reservations, func(r importedReservation) bool {
		if r.Action == api.ActionNone {
			return false
		}
		err := c.AddReservation(ctx, p.Network, api.Reservation{Subnet: r.Subnet, Node: r.Node}, false)
		errs = append(errs, err)
		return err != nil
	})
	return errors.Join(errs...)
}

func writeImport(w io.Writer, p importPlan) {
	switch {
	case p.Action == api.ActionNone:
		cli.Printf(w, "Network %s exists and stays as it is.", p.Network)
	case p.DryRun:
		cli.Printf(w, "Network %s would be created:", p.Network)
	default:
		cli.Printf(w, "Created network %s:", p.Network)
	}
	if p.Action == api.ActionCreate {
		list := poolPairs(p.Pools)
		cli.WritePairs(w, append(list, backendPairs(p.Backend)...))
	}
	if len(p.Reservations) > 0 {
		var rows [][]string
		for _, r := range p.Reservations {
			state := "reserved"
			switch {
			case r.Action == api.ActionNone:
				state = "was reserved"
			case p.DryRun:
				state = "to be reserved"
			}
			rows = append(rows, []string{r.Subnet.String(), r.Node, r.PublicIP.String(), state})
		}
		fmt.Fprintln(w)
		cli.WriteTable(w, []cli.Column{{Title: "SUBNET"}, {Title: "NODE", Cut: true}, {Title: "PUBLIC IP"}, {Title: "RESERVATION"}}, rows)
	}
	if len(p.Notes)+len(p.Skipped) > 0 {
		fmt.Fprintln(w)
	}
	for _, n := range p.Notes {
		item(w, "-", n)
	}
	for _, s := range p.Skipped {
		item(w, "!", "left out: "+s.Key+": "+s.Reason)
	}
}
