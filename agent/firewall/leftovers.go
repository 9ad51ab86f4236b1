package firewall

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// Leftover describes what is ours in one table of the kernel.
type Leftover struct {
	Program string   // the program that shows it: iptables-nft, ip6tables-legacy, nft...
	Table   string   // "nat"; for nft with the family first: "inet leno"
	Parts   []string // in words: "chain LENO-FORWARD", "jump from FORWARD to LENO-FORWARD", "rule ..."

	remove func(context.Context) error
}

// Remove removes the leftover, in one transaction, if it is still there as it was found. It works on the calling
// thread, hence in its network namespace.
func (l Leftover) Remove(ctx context.Context) error {
	if err := l.remove(ctx); err != nil {
		return fmt.Errorf("write table %s: %w", l.Table, err)
	}
	return nil
}

// Leftovers returns what is ours in the kernel, whichever variant of which program made it and whenever: chains and
// their jumps, and tables of nftables. With a network it returns that network's rules, and a chain or table that has
// no others. It continues after a program fails and joins the errors: ErrNotInstalled where our rules exist that only
// an uninstalled program could remove. Programs are started from the calling thread, hence in its network namespace.
func Leftovers(ctx context.Context, network string) ([]Leftover, error) {
	var out []Leftover
	var errs []error
	for _, command := range []string{"iptables", "ip6tables"} {
		variants := variantsOf(ctx, command)
		for _, variant := range []string{variantLegacy, variantNFT} {
			path, ok := variants[variant]
			if !ok {
				l, err := leftWithout(command, variant, network)
				out, errs = append(out, l...), append(errs, err)
				continue
			}
			tables, err := list(ctx, path)
			if err != nil && !unsupported(err) {
				errs = append(errs, err)
			}
			for _, name := range slices.Sorted(maps.Keys(tables)) {
				input, parts := leftIn(name, tables[name], network)
				if input != "" {
					out = append(out, Leftover{Program: filepath.Base(path), Table: name, Parts: parts, remove: func(ctx context.Context) error {
						_, err := run(ctx, input, path+"-restore", "--noflush", "-w", lockWait)
						return err
					}})
				}
			}
		}
	}
	found, err := leftTables(network)
	return append(out, found...), errors.Join(append(errs, err)...)
}

// variantsOf returns the programs for one family by their variants: the kernel keeps the rules of one variant where
// the other does not see them.
func variantsOf(ctx context.Context, command string) map[string]string {
	out := map[string]string{}
	if path, _ := locate(command); path != "" {
		if v, err := askVersion(ctx, path); err == nil {
			out[v.variant] = path
		}
	}
	for _, variant := range []string{variantLegacy, variantNFT} {
		if path, _ := locate(command + "-" + variant); path != "" {
			out[variant] = path
		}
	}
	return out
}

// leftWithout returns what an uninstalled program made. Without the program, the rules of a single network cannot be
// identified, and a legacy table cannot be written.
func leftWithout(command, variant, network string) ([]Leftover, error) {
	f := newIPTablesFamily(hclog.NewNullLogger(), variant, command == "ip6tables")
	why := fmt.Errorf("%w: %s", ErrNotInstalled, f.named())
	if variant == variantLegacy {
		_, err := f.removeWithout(why) // which only reads
		return nil, err
	}
	tables, err := nftHolds(f.v6)
	if len(tables) == 0 {
		return nil, err
	}
	if network != "" {
		return nil, fmt.Errorf("table %s has chains of ours: %w", tables[0], why)
	}
	return []Leftover{{Program: "nft", Table: command + " " + strings.Join(tables, ", "), Parts: []string{"chains " + ownPrefix + "…"},
		remove: func(context.Context) error {
			_, err := f.removeNFT()
			return err
		}}}, nil
}

// unsupported reports whether a program's error means that the kernel lacks the tables it works on, hence has nothing
// of ours in them.
func unsupported(err error) bool {
	return strings.Contains(strings.ToLower(err.Error()), "not supported")
}

// leftIn returns the input for iptables-restore --noflush that removes our parts, or those of the named network, from
// one table, and a description of these parts. Both are empty when there is nothing.
func leftIn(name string, t table, network string) (input string, parts []string) {
	gone := func(chain string) bool { return strings.HasPrefix(chain, ownPrefix) }
	var lines []string
	if network != "" {
		left := map[string]int{} // other rules that remain in each chain
		touched := map[string]bool{}
		for _, r := range t.rules {
			switch {
			case !strings.HasPrefix(r[1], ownPrefix):
			case r.comment() == (rule{network: network}).comment():
				touched[r[1]] = true
				lines = append(lines, "-D "+r[1:].String())
				parts = append(parts, "rule "+r[1:].String())
			default:
				left[r[1]]++
			}
		}
		gone = func(chain string) bool { return touched[chain] && left[chain] == 0 }
	}
	for _, r := range t.rules {
		if target, ok := r.target(); ok && gone(target) && !gone(r[1]) {
			lines = append(lines, "-D "+r[1:].String())
			parts = append(parts, fmt.Sprintf("jump from %s to %s", r[1], target))
		}
	}
	var deletes []string
	for _, chain := range t.chains {
		if gone(chain) {
			lines = append(lines, "-F "+chain)
			deletes = append(deletes, "-X "+chain)
			parts = append(parts, "chain "+chain)
		}
	}
	if len(lines) == 0 {
		return "", nil
	}
	return strings.Join(slices.Concat([]string{"*" + name}, lines, deletes, []string{"COMMIT"}), "\n") + "\n", parts
}

// comment returns the rule's comment.
func (r arguments) comment() string {
	if i := slices.Index(r, "--comment"); i >= 0 && i+1 < len(r) {
		return r[i+1]
	}
	return ""
}
