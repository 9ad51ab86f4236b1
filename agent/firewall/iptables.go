package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// iptables applies rules with the programs of one variant, one program for each family.
type iptables struct {
	variant  string
	families []*iptablesFamily
}

var _ tableWriter = (*iptables)(nil)

// newIPTables returns the applier of one variant. It changes nothing on the host.
func newIPTables(logger hclog.Logger, variant string) *iptables {
	return &iptables{variant: variant, families: []*iptablesFamily{
		newIPTablesFamily(logger, variant, false),
		newIPTablesFamily(logger, variant, true),
	}}
}

func (i *iptables) kind() string { return "iptables-" + i.variant }

func (i *iptables) stamp() string {
	stamp := ""
	for _, f := range i.families {
		stamp += f.stamp() + "\n"
	}
	return stamp
}

// inspect checks the families that have rules. The host prefers the variant that the first of them prefers.
func (i *iptables) inspect(ctx context.Context, want rules) finding {
	var out finding
	var errs []error
	known := false
	for _, f := range i.families {
		if want.family(f.v6).isEmpty() {
			continue
		}
		p, preferred, err := f.program(ctx)
		if f.plainProgram.Path != "" && f.plainProgram.Err != nil && !f.fixed {
			out.doubt = f.withFamily(f.plainProgram.Err)
		}
		if err == nil {
			if !known {
				out.preferred, known = preferred, true // even if it does not work
			}
			_, err = f.read(ctx, p)
		}
		switch {
		case err != nil:
			errs = append(errs, f.withFamily(err))
		case !out.usable:
			out.usable, out.what = true, fmt.Sprintf("%s %s", p.Path, p.Version)
		}
	}
	out.err = errors.Join(errs...)
	return out
}

func (i *iptables) apply(ctx context.Context, want rules) (written []string, err error) {
	var errs []error
	for _, f := range i.families {
		tables, err := f.apply(ctx, want.family(f.v6))
		written = append(written, tables...)
		if err != nil {
			errs = append(errs, f.withFamily(err))
		}
	}
	return written, errors.Join(errs...)
}

// isTouched reports whether the tables differ from when they last agreed.
func (i *iptables) isTouched() bool {
	return slices.ContainsFunc(i.families, (*iptablesFamily).isTouched)
}

// unreadable returns the tables that the programs cannot show, in the notation of nft: "ip filter, ip nat".
func (i *iptables) unreadable() string {
	var out []string
	for _, f := range i.families {
		if tables := f.describeUnreadable(); tables != "" {
			out = append(out, tables)
		}
	}
	return strings.Join(out, ", ")
}
