package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Type says which kind of firewall holds the rules.
type Type string

const (
	// TypeAuto takes iptables where its program is installed and works, so that
	// our rules stand in the same tables as those of Docker and others: a packet
	// passes only if every table accepts it, so an accept in a table of our own
	// overrules nothing. Else it takes nftables.
	TypeAuto     Type = "auto"
	TypeIPTables Type = "iptables" // in the variant that this host prefers
	TypeNFTables Type = "nftables" // without a program, tables of our own
)

// Choice is the kind of firewall that holds the rules, and why.
type Choice struct {
	Kind   string // iptables-nft, iptables-legacy, nftables
	Reason string
}

// finding is what a kind says of itself.
type finding struct {
	kind      string
	what      string // the program with its version, "" for what needs none
	preferred bool   // it is the one that its plain name leads to
	err       error  // why it cannot hold the rules: ErrNotInstalled, or whatever it said
	some      bool   // it can hold those of one address family at least
	doubt     error  // why its plain name does not say which one is preferred
}

// lookAgain is when a kind that would be preferred and does not work is looked
// at again, while another one holds the rules.
const lookAgain = time.Minute

const (
	kindNFTables = "nftables"
	kindLegacy   = "iptables-" + variantLegacy
)

// choose sees to it that chosen is the right kind. It is looked for when
// something of it may have changed: a program was installed, removed or replaced,
// or another type was configured. A kind that fails after it was chosen stays
// chosen, for its rules are in force, and stand where those of Docker do: only one
// that is uninstalled, or not preferred any more, is left.
func (f *Firewall) choose(ctx context.Context, t Type, want rules) error {
	basis := fmt.Sprintln(t, want.of(false).empty(), want.of(true).empty())
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

// broken says that it is there and does not work.
func (f finding) broken() bool { return f.err != nil && !errors.Is(f.err, ErrNotInstalled) }

// choose is the kind to take of those that were found, in order of preference,
// and why in words. One that can hold the rules of one family only is better than
// none. The kind that was chosen last, "" for none, stays while it is broken, and
// while its being preferred is in doubt.
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
			return f, why(t, f, broken), nil
		case errors.Is(f.err, ErrNotInstalled) && !f.some:
			missing = append(missing, f)
		default:
			broken = append(broken, f)
		}
	}
	if i := slices.IndexFunc(order, func(f finding) bool { return f.some }); i >= 0 {
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

// why says in words why a kind was taken, past others that do not work.
func why(t Type, f finding, broken []finding) string {
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
