package firewall

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// lockWait is how long, in seconds, a writer waits for the lock that all users
// of iptables-legacy share.
const lockWait = "5"

// ErrLocked says that another program kept the lock of iptables for longer than
// a writer waits.
var ErrLocked = errors.New("another program holds the lock of iptables, /run/xtables.lock, " +
	"which is tried again; if it stays, see who has it with: fuser -v /run/xtables.lock")

// iptables applies rules of one family with the programs of one variant.
type iptables struct {
	logger  hclog.Logger
	v6      bool
	variant string
	command string // iptables, ip6tables

	plain   program // the one of that name, whichever variant it is
	variety program // the one named for the variant
	fixed   bool    // only variety counts, for tests

	// clean: this process saw that no chain of ours is there, and wants none.
	// Nobody else makes them, so there is nothing to look for.
	clean bool

	// Of the legacy variant: the number of the tables when they agreed, 0 when they
	// may not.
	seed   maphash.Seed
	agreed uint64

	// unable is the stamp of a program that was refused --random-fully, by itself
	// or by the kernel.
	unable string
}

var _ applier = (*iptables)(nil)

// newIPTables touches nothing.
func newIPTables(logger hclog.Logger, variant string, v6 bool) *iptables {
	i := &iptables{logger: logger, v6: v6, variant: variant, command: "iptables", seed: maphash.MakeSeed()}
	if v6 {
		i.command = "ip6tables"
	}
	return i
}

func (i *iptables) kind() string { return "iptables-" + i.variant }

// named is the program's name with its variant.
func (i *iptables) named() string { return i.command + "-" + i.variant }

func (i *iptables) stamp() string {
	_, plain := locate(i.command)
	_, named := locate(i.named())
	return plain + " " + named
}

// program is the one to write this variant with, and whether it is the one that
// this host prefers. The error is ErrNotInstalled, or why it cannot be asked what
// it is.
func (i *iptables) program(ctx context.Context) (p program, preferred bool, err error) {
	i.plain.refresh(ctx, i.command)
	if i.plain.path != "" && i.plain.err == nil && i.plain.version.variant == i.variant && !i.fixed {
		return i.plain, true, nil
	}
	i.variety.refresh(ctx, i.named())
	switch {
	case i.variety.path != "" && i.variety.err == nil:
		return i.variety, i.fixed, nil
	case i.variety.path != "":
		return p, false, i.variety.err
	case i.plain.path != "" && i.plain.err != nil:
		return p, false, i.plain.err
	}
	return p, false, fmt.Errorf("%w: %s; install the package iptables, or set ip_masq = false and forward = false in every network",
		ErrNotInstalled, i.command)
}

func (i *iptables) look(ctx context.Context) finding {
	p, preferred, err := i.program(ctx)
	if err == nil {
		_, err = list(ctx, p.path)
	}
	return finding{what: fmt.Sprintf("%s %s", p.path, p.version), preferred: preferred, err: err}
}

// apply returns the tables written. While no rule is wanted, a program that is
// missing or cannot work here (a kernel without IPv6) is as good as one that
// lists nothing.
func (i *iptables) apply(ctx context.Context, want rules) (written []string, err error) {
	needed := !want.empty()
	if !needed && (i.clean || i.variant == variantLegacy && !slices.ContainsFunc(legacyTables(i.v6), ours)) {
		return nil, nil
	}
	p, _, err := i.program(ctx)
	if err != nil {
		if !needed {
			return nil, nil
		}
		return nil, err
	}
	number := i.number() // before the listing: what happens after it must show
	i.agreed = 0
	tables, err := list(ctx, p.path)
	if err != nil && !needed && ctx.Err() == nil {
		i.logger.Debug("cannot look for leftover firewall rules", "command", p.path, "error", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range tableNames() {
		wrong, err := i.write(ctx, p, name, tables[name], want)
		if err != nil {
			errs = append(errs, fmt.Errorf("write table %s: %w", name, err))
		} else if wrong != "" {
			written = append(written, i.named()+" table "+name+": "+wrong)
		}
	}
	i.clean = !needed && len(errs) == 0
	if len(written)+len(errs) == 0 {
		i.agreed = number
	}
	return written, errors.Join(errs...)
}

// write makes one table agree, in one transaction, and returns what was wrong.
func (i *iptables) write(ctx context.Context, p program, name string, t table, want rules) (wrong string, err error) {
	restore := func(randomFully bool) (string, error) {
		e := change(name, t, render(want, randomFully))
		if e.input == "" {
			return "", nil
		}
		_, err := run(ctx, e.input, p.path+"-restore", "--noflush", "-w", lockWait)
		return strings.Join(e.wrong, "; "), explain(err)
	}
	able := p.version.randomFully() && i.unable != p.stamp
	wrong, err = restore(able)
	if err == nil || !able || name != tableNAT || !want.randomFully() || errors.Is(err, ErrLocked) || ctx.Err() != nil {
		return wrong, err
	}
	// It may be that only this is not known here, by the program or the kernel.
	plain, second := restore(false)
	if second != nil {
		return wrong, err
	}
	i.unable = p.stamp
	i.logger.Warn("firewall does not know random_fully, masquerading goes on without", "command", p.path, "error", err)
	return plain, nil
}

// explain gives an error of iptables-restore the sentinel that tells what to do.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "xtables lock"):
		return fmt.Errorf("%w (%w)", ErrLocked, err)
	case strings.Contains(err.Error(), "you must be root"):
		return fmt.Errorf("%w: %w", unix.EPERM, err)
	}
	return err
}

// number is that of the legacy tables as they are, 0 for none that counts.
func (i *iptables) number() uint64 {
	if i.variant != variantLegacy {
		return 0
	}
	number, err := fingerprint(i.v6, i.seed)
	if err != nil {
		i.logger.Trace("legacy tables cannot be compared", "command", i.named(), "error", err)
		return 0
	}
	return number
}

// touched says whether the tables are other ones than when they agreed. Where they
// cannot be compared, that is left to the resync.
func (i *iptables) touched() bool {
	now := i.number()
	return now != 0 && now != i.agreed
}

// list reads all tables that exist. Asking for a table by name would make the
// legacy variant load its kernel module.
func list(ctx context.Context, path string) (map[string]table, error) {
	saved, err := run(ctx, "", path+"-save")
	if err != nil {
		return nil, explain(err)
	}
	return parseSave(saved)
}

// legacyTables are the tables of iptables-legacy that exist in this network
// namespace. Each is made, and its kernel module loaded, when somebody first
// asks for it, which reading this list does not.
func legacyTables(v6 bool) []string {
	path := "/proc/thread-self/net/ip_tables_names"
	if v6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	names, err := os.ReadFile(path)
	if err != nil {
		return nil // the kernel has none of it
	}
	return strings.Fields(string(names))
}
