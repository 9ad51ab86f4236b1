// Package leftover finds and removes the rules that leno left in the kernel, whichever kind of firewall holds them and
// whichever version wrote them. It needs to know only how our chains, tables and comments are named.
package leftover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// Rules are ours, all in one table of the kernel.
type Rules struct {
	Program string   // the program that shows them: iptables-nft, ip6tables-legacy, nft...
	Table   string   // "nat"; for nft with the family first: "inet leno"
	Parts   []string // in words: "chain LENO-FORWARD", "jump from FORWARD to LENO-FORWARD", "rule ..."

	remove func(context.Context) error
}

// Remove removes the rules, in one transaction, if they are still there as they were found. It works on the calling
// thread, hence in its network namespace.
func (r Rules) Remove(ctx context.Context) error {
	if err := r.remove(ctx); err != nil {
		return fmt.Errorf("write table %s: %w", r.Table, err)
	}
	return nil
}

// Find returns what is ours in the kernel, whichever variant of which program made it and whenever: chains and their
// jumps, and tables of nftables. With a network it returns that network's rules, and a chain or table that has no
// others. It continues after a program fails and joins the errors: firewall.ErrNotInstalled where our rules exist that
// only an uninstalled program could remove. Programs are started from the calling thread, hence in its network
// namespace.
func Find(ctx context.Context, network string) ([]Rules, error) {
	var out []Rules
	var errs []error
	for _, command := range []string{"iptables", "ip6tables"} {
		programs := netfilter.Programs(ctx, command)
		for _, variant := range []string{netfilter.VariantLegacy, netfilter.VariantNFT} {
			path, installed := programs[variant]
			if !installed {
				found, err := ofUninstalled(command, variant, network)
				out, errs = append(out, found...), append(errs, err)
				continue
			}
			tables, err := netfilter.List(ctx, path)
			switch {
			case err == nil || errors.As(err, new(*netfilter.UnreadableError)):
				found, err := inUnlisted(ctx, command, variant, path, network, tables)
				out, errs = append(out, found...), append(errs, err)
			case !netfilter.IsUnsupported(err):
				errs = append(errs, err)
			}
			for _, name := range slices.Sorted(maps.Keys(tables)) {
				input, parts := removal(name, tables[name], network)
				if input == "" {
					continue
				}
				out = append(out, Rules{
					Program: filepath.Base(path),
					Table:   name,
					Parts:   parts,
					remove:  func(ctx context.Context) error { return netfilter.Restore(ctx, path, input) },
				})
			}
		}
	}
	found, err := inNFTables(network)
	return append(out, found...), errors.Join(append(errs, err)...)
}

// ofUninstalled returns what an uninstalled program made. Without the program, the rules of a single network cannot be
// identified, and a legacy table cannot be written.
func ofUninstalled(command, variant, network string) ([]Rules, error) {
	u := firewall.Uninstalled{Variant: variant, V6: command == "ip6tables"}
	tables, err := u.Tables()
	if len(tables) == 0 {
		return nil, err
	}
	why := fmt.Errorf("%w: %s-%s", firewall.ErrNotInstalled, command, variant)
	if network != "" || variant == netfilter.VariantLegacy {
		return nil, fmt.Errorf("table %s has chains of ours: %w", tables[0], why)
	}
	return []Rules{{
		Program: "nft",
		Table:   command + " " + strings.Join(tables, ", "),
		Parts:   []string{"chains " + firewall.ChainPrefix + "…"},
		remove: func(context.Context) error {
			_, err := u.Remove(why)
			return err
		},
	}}, nil
}

// inUnlisted returns what is ours in the tables of iptables-nft that are not listed because it cannot show them.
func inUnlisted(
	ctx context.Context, command, variant, path, network string, listed map[string]netfilter.Table,
) (out []Rules, err error) {
	if variant == netfilter.VariantLegacy {
		return nil, nil // it shows everything
	}
	u := firewall.Uninstalled{Variant: variant, V6: command == "ip6tables"}
	tables, err := u.Tables()
	if err != nil {
		return nil, err
	}
	for _, name := range tables {
		if _, ok := listed[name]; ok {
			continue
		}
		t, err := netfilter.ReadTable(ctx, path, u.V6, name, firewall.ChainPrefix)
		if err != nil {
			return out, err
		}
		input, parts := removal(name, t, network)
		if input == "" {
			continue
		}
		remove := func(ctx context.Context) error { return netfilter.Restore(ctx, path, input) }
		if network == "" {
			whole := firewall.Uninstalled{Variant: variant, V6: u.V6, Table: name}
			remove = func(context.Context) error {
				_, err := whole.Remove(nil)
				return err
			}
		}
		out = append(out, Rules{Program: filepath.Base(path), Table: name, Parts: parts, remove: remove})
	}
	return out, nil
}

// removal returns the input for iptables-restore --noflush that removes our parts, or those of the named network, from
// one table, and a description of these parts. Both are empty when there is nothing.
func removal(name string, t netfilter.Table, network string) (input string, parts []string) {
	removed := func(chain string) bool { return strings.HasPrefix(chain, firewall.ChainPrefix) }
	var lines []string
	if network != "" {
		others := map[string]int{} // rules of other networks in each chain
		touched := map[string]bool{}
		for _, r := range t.Rules {
			switch {
			case !strings.HasPrefix(r[1], firewall.ChainPrefix):
			case r.Comment() == firewall.Comment(network):
				touched[r[1]] = true
				lines = append(lines, "-D "+r[1:].String())
				parts = append(parts, "rule "+r[1:].String())
			default:
				others[r[1]]++
			}
		}
		removed = func(chain string) bool { return touched[chain] && others[chain] == 0 }
	}
	for _, r := range t.Rules {
		if target, ok := r.Target(); ok && removed(target) && !removed(r[1]) {
			lines = append(lines, "-D "+r[1:].String())
			parts = append(parts, fmt.Sprintf("jump from %s to %s", r[1], target))
		}
	}
	var deletes []string
	for _, chain := range t.Chains {
		if removed(chain) {
			lines = append(lines, "-F "+chain)
			deletes = append(deletes, "-X "+chain)
			parts = append(parts, "chain "+chain)
		}
	}
	if len(lines) == 0 {
		return "", nil
	}
	input = strings.Join(slices.Concat([]string{"*" + name}, lines, deletes, []string{"COMMIT"}), "\n") + "\n"
	return input, parts
}
