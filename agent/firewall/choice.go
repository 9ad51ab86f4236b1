package firewall

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Choice is the kind of firewall that holds the rules, and why.
type Choice struct {
	Kind   string // iptables-nft, iptables-legacy, nftables
	Reason string
}

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
		case f.err == nil, f.isBroken() && f.kind == last:
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
		out = append(out, fmt.Sprintf("a preferred firewall failed: %v", b.err))
	}
	return strings.Join(out, ", ")
}
