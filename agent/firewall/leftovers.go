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

	"github.com/lenonet/leno/agent/firewall/netfilter"
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
		variants := netfilter.Programs(ctx, command)
		for _, variant := range []string{netfilter.VariantLegacy, netfilter.VariantNFT} {
			path, ok := variants[variant]
			if !ok {
				l, err := leftWithout(command, variant, network)
				out, errs = append(out, l...), append(errs, err)
				continue
			}
			tables, err := netfilter.List(ctx, path)
			if err != nil && !netfilter.IsUnsupported(err) {
				errs = append(errs, err)
			}
			for _, name := range slices.Sorted(maps.Keys(tables)) {
				input, parts := leftIn(name, tables[name], network)
				if input != "" {
					out = append(out, Leftover{Program: filepath.Base(path), Table: name, Parts: parts, remove: func(ctx context.Context) error {
						return netfilter.Restore(ctx, path, input)
					}})
				}
			}
		}
	}
	found, err := leftTables(network)
	return append(out, found...), errors.Join(append(errs, err)...)
}

// leftWithout returns what an uninstalled program made. Without the program, the rules of a single network cannot be
// identified, and a legacy table cannot be written.
func leftWithout(command, variant, network string) ([]Leftover, error) {
	f := newIPTablesFamily(hclog.NewNullLogger(), variant, command == "ip6tables")
	why := fmt.Errorf("%w: %s", ErrNotInstalled, f.named())
	if variant == netfilter.VariantLegacy {
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
	return []Leftover{{Program: "nft", Table: command + " " + strings.Join(tables, ", "), Parts: []string{"chains " + ChainPrefix + "…"},
		remove: func(context.Context) error {
			_, err := f.removeNFT()
			return err
		}}}, nil
}

// leftIn returns the input for iptables-restore --noflush that removes our parts, or those of the named network, from
// one table, and a description of these parts. Both are empty when there is nothing.
func leftIn(name string, t netfilter.Table, network string) (input string, parts []string) {
	gone := func(chain string) bool { return strings.HasPrefix(chain, ChainPrefix) }
	var lines []string
	if network != "" {
		left := map[string]int{} // other rules that remain in each chain
		touched := map[string]bool{}
		for _, r := range t.Rules {
			switch {
			case !strings.HasPrefix(r[1], ChainPrefix):
			case r.Comment() == (rule{network: network}).comment():
				touched[r[1]] = true
				lines = append(lines, "-D "+r[1:].String())
				parts = append(parts, "rule "+r[1:].String())
			default:
				left[r[1]]++
			}
		}
		gone = func(chain string) bool { return touched[chain] && left[chain] == 0 }
	}
	for _, r := range t.Rules {
		if target, ok := r.Target(); ok && gone(target) && !gone(r[1]) {
			lines = append(lines, "-D "+r[1:].String())
			parts = append(parts, fmt.Sprintf("jump from %s to %s", r[1], target))
		}
	}
	var deletes []string
	for _, chain := range t.Chains {
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
