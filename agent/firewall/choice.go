package firewall

import (
	"context"
	"errors"
	"fmt"
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

// Choice is the kind of firewall that holds one family's rules, and why.
type Choice struct {
	Family string // IPv4, IPv6
	Kind   string // iptables-nft, iptables-legacy, nftables
	Reason string
}

// finding is what a kind says of itself.
type finding struct {
	kind      string
	what      string // the program with its version, "" for what needs none
	preferred bool   // it is the one that its plain name leads to
	err       error  // why it cannot be used: ErrNotInstalled, or whatever it said
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
// chosen, for its rules are in force.
func (f *family) choose(ctx context.Context, t Type) error {
	basis := string(t)
	for _, a := range f.appliers {
		basis += "\n" + a.stamp()
	}
	if f.chosen != nil && f.basis == basis && (f.again.IsZero() || time.Now().Before(f.again)) {
		return nil
	}
	var found []finding
	for _, a := range f.appliers {
		if t == TypeNFTables && a.kind() != kindNFTables || t == TypeIPTables && a.kind() == kindNFTables {
			continue
		}
		seen := a.look(ctx)
		seen.kind = a.kind()
		found = append(found, seen)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	best, reason, err := choose(t, found)
	if err != nil {
		f.chosen, f.applied = nil, nil
		return err
	}
	for _, a := range f.appliers {
		if a.kind() == best.kind && a != f.chosen {
			f.chosen, f.applied = a, nil
		}
	}
	f.choice = Choice{Family: f.name, Kind: best.kind, Reason: reason}
	f.basis, f.again = basis, time.Time{}
	for _, seen := range found {
		if seen.err != nil && !errors.Is(seen.err, ErrNotInstalled) {
			f.again = time.Now().Add(lookAgain)
		}
	}
	return nil
}

// choose is the kind to take of those that were found, in order of preference,
// and why in words.
func choose(t Type, found []finding) (best finding, reason string, err error) {
	var broken, missing []error
	for _, want := range []func(finding) bool{
		func(f finding) bool { return f.kind != kindNFTables && f.preferred },
		func(f finding) bool { return f.kind != kindNFTables && !f.preferred },
		func(f finding) bool { return f.kind == kindNFTables },
	} {
		for _, f := range found {
			switch {
			case !want(f):
			case f.err == nil:
				return f, why(t, f, broken), nil
			case errors.Is(f.err, ErrNotInstalled):
				missing = append(missing, f.err)
			default:
				broken = append(broken, f.err)
			}
		}
	}
	switch {
	case len(broken) > 0:
		return best, "", errors.Join(broken...)
	case len(missing) > 0:
		return best, "", missing[0]
	}
	return best, "", fmt.Errorf("%w: none that is a firewall of type %q", ErrNotInstalled, t)
}

// why says in words why a kind was taken, past others that do not work.
func why(t Type, f finding, broken []error) string {
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
	for _, err := range broken {
		out = append(out, fmt.Sprintf("instead of what does not work: %v", err))
	}
	return strings.Join(out, ", ")
}
