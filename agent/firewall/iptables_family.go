package firewall

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// lockWait is how long, in seconds, a writer waits for the lock that all users of iptables-legacy share.
const lockWait = "5"

// ErrLocked reports that another program kept the lock of iptables for longer than a writer waits.
var ErrLocked = errors.New("another program holds the lock of iptables, /run/xtables.lock, " +
	"which is tried again; if it stays, see who has it with: fuser -v /run/xtables.lock")

// errUnlisted reports that a listing was given up; nothing was written after it.
var errUnlisted = errors.New("list rules")

// iptablesFamily holds one address family's program of one variant, and its tables.
type iptablesFamily struct {
	logger  hclog.Logger
	v6      bool
	variant string
	command string // iptables, ip6tables

	plain   program // the program of that name, whichever variant it is
	variety program // the one named for the variant
	fixed   bool    // only variety counts; for tests

	// clean means that this process saw no chain of ours and wants none. No other program makes such chains, so there
	// is nothing to look for.
	clean bool

	// For the legacy variant: the fingerprint of the tables when they agreed, 0 when they may not agree.
	seed   maphash.Seed
	agreed uint64

	// unable is the stamp of a program that rejected --random-fully, or for which the kernel did.
	unable string
}

func newIPTablesFamily(logger hclog.Logger, variant string, v6 bool) *iptablesFamily {
	f := &iptablesFamily{logger: logger, v6: v6, variant: variant, command: "iptables", seed: maphash.MakeSeed()}
	if v6 {
		f.command = "ip6tables"
	}
	return f
}

// told returns the error with its address family.
func (f *iptablesFamily) told(err error) error {
	return fmt.Errorf("%s firewall: %w", map[bool]string{false: "IPv4", true: "IPv6"}[f.v6], err)
}

// named returns the program's name with its variant.
func (f *iptablesFamily) named() string { return f.command + "-" + f.variant }

func (f *iptablesFamily) stamp() string {
	_, plain := locate(f.command)
	_, named := locate(f.named())
	return plain + " " + named
}

// program returns the program that writes this variant, and whether it is the one that this host prefers. The error
// is ErrNotInstalled, or the reason why the program's version cannot be determined.
func (f *iptablesFamily) program(ctx context.Context) (p program, preferred bool, err error) {
	f.plain.refresh(ctx, f.command)
	if f.plain.path != "" && f.plain.err == nil && f.plain.version.variant == f.variant && !f.fixed {
		return f.plain, true, nil
	}
	f.variety.refresh(ctx, f.named())
	switch {
	case f.variety.path != "" && f.variety.err == nil:
		return f.variety, f.fixed, nil
	case f.variety.path != "":
		return p, false, f.variety.err
	case f.plain.path != "" && f.plain.err != nil:
		return p, false, f.plain.err
	}
	return p, false, fmt.Errorf("%w: %s; install the package iptables, or set ip_masq = false and forward = false in every network",
		ErrNotInstalled, f.command)
}

// apply returns the tables written. While no rule is wanted, a program that is missing or cannot work here (a kernel
// without IPv6) is an error only if it left rules of ours that cannot be removed without it.
func (f *iptablesFamily) apply(ctx context.Context, want rules) (written []string, err error) {
	needed := !want.empty()
	if !needed && (f.clean || f.variant == variantLegacy && !slices.ContainsFunc(legacyTables(f.v6), ours)) {
		return nil, nil
	}
	number := f.number() // before the listing, so that later changes show
	f.agreed = 0
	var tables map[string]table
	p, _, err := f.program(ctx)
	if err == nil {
		tables, err = list(ctx, p.path)
	}
	switch {
	case err != nil && (needed || ctx.Err() != nil):
		return nil, err
	case err != nil:
		written, err = f.removeWithout(err)
		f.clean = err == nil
		return written, err
	}
	var errs []error
	for _, name := range tableNames() {
		wrong, err := f.write(ctx, p, name, tables[name], want)
		if err != nil {
			errs = append(errs, fmt.Errorf("write table %s: %w", name, err))
		} else if wrong != "" {
			written = append(written, f.named()+" table "+name+": "+wrong)
		}
	}
	f.clean = !needed && len(errs) == 0
	if len(written)+len(errs) == 0 {
		f.agreed = number
	}
	return written, errors.Join(errs...)
}

// write makes one table agree, in one transaction, and returns what was wrong.
func (f *iptablesFamily) write(ctx context.Context, p program, name string, t table, want rules) (wrong string, err error) {
	restore := func(randomFully bool) (string, error) {
		e := change(name, t, render(want, randomFully))
		if e.input == "" {
			return "", nil
		}
		_, err := run(ctx, e.input, p.path+"-restore", "--noflush", "-w", lockWait)
		return strings.Join(e.wrong, "; "), explain(err)
	}
	able := p.version.randomFully && f.unable != p.stamp
	wrong, err = restore(able)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && !errors.Is(err, ErrLocked) && !errors.Is(err, unix.EPERM) && ctx.Err() == nil {
		// Another program may have written the table at the same instant, or since it was listed, so that a position
		// in it may now be another rule's.
		if tables, unlisted := list(ctx, p.path); unlisted == nil {
			t = tables[name]
			wrong, err = restore(able)
		}
	}
	if err == nil || !able || name != tableNAT || !want.randomFully() || errors.Is(err, ErrLocked) || ctx.Err() != nil {
		return wrong, err
	}
	// Perhaps only --random-fully is unknown to the program or the kernel.
	plain, second := restore(false)
	if second != nil {
		return wrong, err
	}
	f.unable = p.stamp
	f.logger.Warn("firewall does not know random_fully, masquerading goes on without", "command", p.path, "error", err)
	return plain, nil
}

// explain adds to an error of iptables-restore the sentinel that tells what to do.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "xtables lock"):
		return fmt.Errorf("%w (%w)", ErrLocked, err)
	case strings.Contains(err.Error(), "Permission denied"): // "(you must be root)", even to root without rights
		return fmt.Errorf("%w: %w", unix.EPERM, err)
	}
	return err
}

// number returns the fingerprint of the legacy tables as they are, 0 when there is no valid one.
func (f *iptablesFamily) number() uint64 {
	if f.variant != variantLegacy {
		return 0
	}
	number, err := fingerprint(f.v6, f.seed)
	if err != nil {
		f.logger.Trace("legacy tables cannot be compared", "command", f.named(), "error", err)
		return 0
	}
	return number
}

// touched reports whether the tables differ from when they agreed. Where they cannot be compared, it leaves that to
// the resync.
func (f *iptablesFamily) touched() bool {
	now := f.number()
	return now != 0 && now != f.agreed
}

// list reads all tables that exist. Asking for a table by name would make the legacy variant load its kernel module.
func list(ctx context.Context, path string) (map[string]table, error) {
	return ordinary().list(ctx, path)
}

func (b bounds) list(ctx context.Context, path string) (map[string]table, error) {
	saved, err := b.run(ctx, "", path+"-save")
	if errors.Is(err, errEndless) {
		return nil, fmt.Errorf("%w: %w", errUnlisted, err)
	}
	if err != nil {
		return nil, explain(err)
	}
	return parseSave(saved)
}

// legacyTables returns the tables of iptables-legacy that exist in this network namespace. The kernel creates a
// table, and loads its module, when a program first asks for that table. Reading this list does not create any.
func legacyTables(v6 bool) []string {
	path := "/proc/thread-self/net/ip_tables_names"
	if v6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	names, err := os.ReadFile(path)
	if err != nil {
		return nil // the kernel has no legacy tables
	}
	return strings.Fields(string(names))
}
