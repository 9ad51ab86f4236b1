package firewall

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os/exec"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// iptablesFamily holds one address family's program of one variant, and its tables.
type iptablesFamily struct {
	logger  hclog.Logger
	v6      bool
	variant string
	command string // iptables, ip6tables

	plainProgram   netfilter.Program // the program of that name, whichever variant it is
	variantProgram netfilter.Program // the one named for the variant
	fixed          bool              // only variantProgram counts; for tests

	// clean means that this process saw no chain of ours and wants none. No other program makes such chains, so there
	// is nothing to look for.
	clean bool

	// The tables had this fingerprint when they agreed with these rules; 0 when they may not agree.
	seed       maphash.Seed
	agreed     uint64
	agreedWith rules

	unreadable []string // tables of ours that the program could not show when they were last read

	// wrote holds the rules that this process wrote last, by table and chain of ours.
	wrote map[string]map[string][]netfilter.Rule

	// unable is the stamp of a program that rejected --random-fully, or for which the kernel did.
	unable string
}

func newIPTablesFamily(logger hclog.Logger, variant string, v6 bool) *iptablesFamily {
	f := &iptablesFamily{
		logger:  logger,
		v6:      v6,
		variant: variant,
		command: "iptables",
		seed:    maphash.MakeSeed(),
		wrote:   map[string]map[string][]netfilter.Rule{},
	}
	if v6 {
		f.command = "ip6tables"
	}
	return f
}

// withFamily returns the error with its address family.
func (f *iptablesFamily) withFamily(err error) error {
	return fmt.Errorf("%s firewall: %w", map[bool]string{false: "IPv4", true: "IPv6"}[f.v6], err)
}

// name returns the program's name with its variant.
func (f *iptablesFamily) name() string { return f.command + "-" + f.variant }

func (f *iptablesFamily) stamp() string {
	_, plain := netfilter.Locate(f.command)
	_, named := netfilter.Locate(f.name())
	return plain + " " + named
}

// program returns the program that writes this variant, and whether it is the one that this host prefers. The error
// is ErrNotInstalled, or the reason why the program's version cannot be determined.
func (f *iptablesFamily) program(ctx context.Context) (p netfilter.Program, preferred bool, err error) {
	f.plainProgram.Refresh(ctx, f.command)
	if p := f.plainProgram; p.Path != "" && p.Err == nil && p.Version.Variant == f.variant && !f.fixed {
		return p, true, nil
	}
	f.variantProgram.Refresh(ctx, f.name())
	switch {
	case f.variantProgram.Path != "" && f.variantProgram.Err == nil:
		return f.variantProgram, f.fixed, nil
	case f.variantProgram.Path != "":
		return p, false, f.variantProgram.Err
	case f.plainProgram.Path != "" && f.plainProgram.Err != nil:
		return p, false, f.plainProgram.Err
	}
	return p, false, fmt.Errorf("%w: %s; install the package iptables, "+
		"or set ip_masq = false and forward = false in every network", ErrNotInstalled, f.command)
}

// withOwnName returns the program under the name of its variant, if there is one. While an operator changes the
// preferred variant, the plain names lead to both: rules would be listed by one variant and written by the other.
func (f *iptablesFamily) withOwnName(ctx context.Context, p netfilter.Program) netfilter.Program {
	f.variantProgram.Refresh(ctx, f.name())
	if v := f.variantProgram; v.Path != "" && v.Err == nil && v.Version.Variant == f.variant {
		return v
	}
	return p
}

// apply returns the tables written. It lists nothing while the kernel shows that no rule changed. While no rule is
// wanted, a program that is missing or cannot work here (a kernel without IPv6) is an error only if it left rules of
// ours that cannot be removed without it.
func (f *iptablesFamily) apply(ctx context.Context, want rules) (written []string, err error) {
	number := f.fingerprint() // before the listing, so that later changes show
	needed := !want.isEmpty()
	if !needed && (f.clean || f.isWithoutTables()) {
		f.agreed, f.agreedWith = number, want
		return nil, nil
	}
	if needed && !f.isWithoutTables() && number != 0 && number == f.agreed && reflect.DeepEqual(want, f.agreedWith) {
		return nil, nil
	}
	f.agreed = 0
	var tables map[string]netfilter.Table
	p, _, err := f.program(ctx)
	if err == nil {
		p = f.withOwnName(ctx, p)
		tables, err = f.read(ctx, p)
	}
	switch {
	case err != nil && (needed || ctx.Err() != nil):
		return nil, err
	case err != nil:
		written, err := f.removeWithoutProgram(err, "")
		f.clean = err == nil
		return written, err
	}
	var errs []error
	for _, name := range tableNames() {
		if !needed && f.mayHide(name, tables[name]) {
			removed, err := f.removeWithoutProgram(nil, name)
			written, errs = append(written, removed...), append(errs, err)
			continue
		}
		wrong, err := f.write(ctx, p, name, tables[name], want)
		if err != nil {
			errs = append(errs, fmt.Errorf("write table %s: %w", name, err))
		} else if wrong != "" {
			written = append(written, f.name()+" table "+name+": "+wrong)
		}
	}
	err = errors.Join(errs...)
	f.clean = !needed && err == nil
	if len(written) == 0 && err == nil {
		f.agreed, f.agreedWith = number, want
	}
	return written, err
}

// removeWithoutProgram removes our rules without the program, which cannot be used because of why, from one table or,
// if it is "", from all. It returns the tables written.
func (f *iptablesFamily) removeWithoutProgram(why error, table string) (written []string, err error) {
	tables, err := Uninstalled{Variant: f.variant, V6: f.v6, Table: table}.Remove(why)
	for _, name := range tables {
		written = append(written, f.name()+" table "+name)
	}
	return written, err
}

// isWithoutTables reports whether none of the tables exists that may have rules of ours.
func (f *iptablesFamily) isWithoutTables() bool {
	return f.variant == netfilter.VariantLegacy && !slices.ContainsFunc(netfilter.LegacyTables(f.v6), isOurTable)
}

// write makes one table agree, in one transaction, and returns what was wrong.
func (f *iptablesFamily) write(
	ctx context.Context, p netfilter.Program, name string, t netfilter.Table, want rules,
) (wrong string, err error) {
	attempt := func(randomFully bool) (string, error) {
		chains := render(want, randomFully)
		e := change(name, t, chains)
		if e.input == "" {
			return "", nil
		}
		err := netfilter.Restore(ctx, p.Path, e.input)
		if err == nil {
			f.wrote[name] = chains
		}
		return strings.Join(e.wrong, "; "), err
	}
	t, err = f.withHidden(ctx, p, name, t, render(want, false))
	if err != nil {
		return "", err
	}
	able := p.Version.RandomFully && f.unable != p.Stamp
	wrong, err = attempt(able)
	locked := errors.Is(err, netfilter.ErrLocked)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && !locked && !errors.Is(err, unix.EPERM) &&
		ctx.Err() == nil {
		// Another program may have written the table at the same instant, or since it was listed, so that a position
		// in it may now be another rule's.
		if tables, unlisted := f.read(ctx, p); unlisted == nil {
			t = tables[name]
			wrong, err = attempt(able)
		}
	}
	locked = errors.Is(err, netfilter.ErrLocked)
	refused := errors.As(err, new(*exec.ExitError)) // a program that was killed because it took too long refused nothing
	if !refused || !able || name != tableNAT || !want.randomFully() || locked || ctx.Err() != nil {
		return wrong, err
	}
	// Perhaps only --random-fully is unknown to the program or the kernel.
	plain, second := attempt(false)
	if second != nil {
		return wrong, err
	}
	f.unable = p.Stamp
	f.logger.Warn("firewall does not know random_fully, masquerading goes on without", "command", p.Path, "error", err)
	return plain, nil
}

// fingerprint returns a number that changes with the rules of the tables, 0 when there is none.
func (f *iptablesFamily) fingerprint() uint64 {
	number, err := f.number()
	if err != nil {
		f.logger.Trace("tables cannot be compared", "command", f.name(), "error", err)
		return 0
	}
	return number
}

func (f *iptablesFamily) number() (uint64, error) {
	if f.variant == netfilter.VariantLegacy {
		return netfilter.Fingerprint(f.v6, tableNames(), f.seed)
	}
	generation, err := netfilter.Generation()
	return uint64(generation), err
}

// isTouched reports whether the tables differ from when they agreed. Where they cannot be compared, it leaves that to
// the resync.
func (f *iptablesFamily) isTouched() bool {
	now := f.fingerprint()
	return now != 0 && now != f.agreed
}
