package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// Type selects the kind of firewall that holds the rules.
type Type string

const (
	// TypeAuto takes iptables where its program is installed and works, so that our rules are in the same tables as
	// those of Docker and others. A packet passes only if every table accepts it, so an accept in a table of our own
	// overrules nothing. Otherwise it takes nftables.
	TypeAuto     Type = "auto"
	TypeIPTables Type = "iptables" // in the variant that this host prefers
	TypeNFTables Type = "nftables" // tables of our own, without a program
)

// Choice is the kind of firewall that holds the rules, and why.
type Choice struct {
	Kind   string // iptables-nft, iptables-legacy, nftables
	Reason string
}

// finding holds what a kind reports about itself.
type finding struct {
	kind      string
	what      string // the program with its version, "" if the kind needs none
	preferred bool   // the program's plain name leads to this kind
	err       error  // why it cannot hold the rules: ErrNotInstalled, or the error it returned
	usable    bool   // it can hold the rules of at least one address family
	doubt     error  // why the plain name does not tell which kind is preferred
}

// lookAgain is the interval between checks of a kind that would be preferred but does not work, while another one
// holds the rules.
const lookAgain = time.Minute

const (
	kindNFTables = "nftables"
	kindLegacy   = "iptables-" + netfilter.VariantLegacy
)

// choose makes sure that chosen is the right kind. It searches when something relevant may have changed: a program
// was installed, removed or replaced, or another type was configured. A kind that fails after it was chosen stays
// chosen, because its rules are in force and are in the same tables as Docker's. It is given up only when it is
// uninstalled or no longer preferred.
func (f *Firewall) choose(ctx context.Context, t Type, want rules) error {
	basis := fmt.Sprintln(t, want.family(false).isEmpty(), want.family(true).isEmpty())
	for _, a := range f.appliers {
		basis += a.stamp() + "\n"
	}
	if f.chosen != nil && f.basis == basis && (f.again.IsZero() || time.Now().Before(f.again)) {
		return nil
	}
	var found []finding
	for _, a := range f.appliers {
		if t == TypeNFTables && a.kind() != kindNFTables || t == TypeIPTables && a.kind() == kindNFTables {
			continue
		}
		seen := a.look(ctx, want)
		seen.kind = a.kind()
		found = append(found, seen)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	last := ""
	if f.chosen != nil {
		last = f.chosen.kind()
	}
	best, reason, err := choose(t, found, last)
	if err != nil {
		f.chosen = nil
		return err
	}
	for _, a := range f.appliers {
		if a.kind() == best.kind {
			f.chosen = a
		}
	}
	f.broken = best.broken()
	if !f.broken || best.kind != last { // else the reason is the one it was chosen for
		f.choice = Choice{Kind: best.kind, Reason: reason}
	}
	f.basis, f.again, f.instead = basis, time.Time{}, nil
	for _, seen := range found {
		if seen.broken() || seen.doubt != nil {
			f.again = time.Now().Add(lookAgain)
		}
		if seen.kind != best.kind && seen.preferred && seen.broken() {
			f.instead = seen.err
		}
		if seen.doubt != nil {
			f.instead = seen.doubt
		}
	}
	return nil
}

// broken reports whether the kind is there but does not work.
func (f finding) broken() bool { return f.err != nil && !errors.Is(f.err, ErrNotInstalled) }

// choose returns the kind to use out of those found, in order of preference, and the reason in words. A kind that can
// hold the rules of one family only is better than none. The kind that was chosen last, "" for none, stays while it
// is broken or while it is in doubt which kind is preferred.
func choose(t Type, found []finding, last string) (best finding, reason string, err error) {
	var order, broken, missing []finding
	preferred := func(f finding) bool { return f.preferred || f.doubt != nil && f.kind == last }
	for _, fits := range []func(finding) bool{
		func(f finding) bool { return f.kind != kindNFTables && preferred(f) },
		func(f finding) bool { return f.kind != kindNFTables && !preferred(f) },
		func(f finding) bool { return f.kind == kindNFTables },
	} {
		for _, f := range found {
			if fits(f) {
				order = append(order, f)
			}
		}
	}
	for _, f := range order {
		switch {
		case f.err == nil, f.broken() && f.kind == last:
			return f, reasonFor(t, f, broken), nil
		case errors.Is(f.err, ErrNotInstalled) && !f.usable:
			missing = append(missing, f)
		default:
			broken = append(broken, f)
		}
	}
	if i := slices.IndexFunc(order, func(f finding) bool { return f.usable }); i >= 0 {
		return order[i], order[i].what + " is installed", nil
	}
	for _, f := range broken {
		err = errors.Join(err, f.err)
	}
	switch {
	case err != nil:
		return best, "", err
	case len(missing) > 0:
		return best, "", missing[0].err
	}
	return best, "", fmt.Errorf("%w: none that is a firewall of type %q", ErrNotInstalled, t)
}

// reasonFor returns the reason in words why a kind was chosen, including others that do not work.
func reasonFor(t Type, f finding, broken []finding) string {
	var out []string
	switch {
	case f.kind == kindNFTables && t == TypeNFTables:
		out = append(out, "as configured")
	case f.kind == kindNFTables && len(broken) == 0:
		out = append(out, "iptables is not installed")
	case f.kind != kindNFTables && t == TypeIPTables:
		out = append(out, f.what+", as configured")
	case f.kind != kindNFTables:
		out = append(out, f.what+" is installed and works")
	}
	for _, b := range broken {
		out = append(out, fmt.Sprintf("instead of what does not work: %v", b.err))
	}
	return strings.Join(out, ", ")
}
