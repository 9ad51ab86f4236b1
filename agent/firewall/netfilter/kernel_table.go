package netfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
)

// FamilyOf returns the family of nf_tables whose tables iptables-nft, or ip6tables-nft, writes.
func FamilyOf(v6 bool) nftables.TableFamily {
	if v6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// ReadTable reads from the kernel one table of the iptables-nft at path, which cannot show it. It returns all chains,
// and all rules in order, each with its chain and target only: "-j X" alone is a jump without conditions. The rules of
// chains whose names begin with prefix are returned as the program shows them. If it cannot show such a chain, each of
// its rules is "-A", chain. A table that does not exist has no chains.
func ReadTable(ctx context.Context, path string, v6 bool, name, prefix string) (t Table, err error) {
	err = WithConn(func(c *Conn) error {
		return c.Settled(func() (err error) {
			t, err = c.readTable(&nftables.Table{Name: name, Family: FamilyOf(v6)}, prefix)
			return err
		})
	})
	switch {
	case err == nil:
	case IsNFTMissing(err):
		return Table{}, nil
	case errors.Is(err, ErrUnsettled):
		return Table{}, fmt.Errorf("%w: table %s: %w", ErrUnlisted, name, err)
	default:
		return Table{}, fmt.Errorf("read table %s from the kernel: %w", name, ExplainNFT(err))
	}
	for _, chain := range t.Chains {
		if !strings.HasPrefix(chain, prefix) {
			continue
		}
		rules, err := listChain(ctx, path, name, chain)
		if ctx.Err() != nil {
			return Table{}, ctx.Err()
		}
		if err == nil {
			t.replaceChain(chain, rules)
		}
	}
	return t, nil
}

// readTable reads the chains and rules of one table. A jump to a chain whose name begins with prefix, but with
// conditions or a comment, is returned without its target: the program could not delete it by its words.
func (c *Conn) readTable(table *nftables.Table, prefix string) (Table, error) {
	t := Table{}
	chains, err := c.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return t, fmt.Errorf("list chains: %w", err)
	}
	rules, err := c.Rules(table.Family, table.Name)
	if err != nil {
		return t, fmt.Errorf("list rules: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name != table.Name {
			continue
		}
		t.Chains = append(t.Chains, chain.Name)
		for _, r := range rules[chain.Name] {
			target, conditional, err := c.targetOf(table, r)
			if err != nil {
				return t, err
			}
			words := Rule{"-A", chain.Name}
			switch {
			case strings.HasPrefix(chain.Name, prefix), target == "", conditional && strings.HasPrefix(target, prefix):
			case conditional:
				words = append(words, "-m", "conditions", "-j", target)
			default:
				words = append(words, "-j", target)
			}
			t.Rules = append(t.Rules, words)
		}
	}
	return t, nil
}

// targetOf returns the chain that a rule leads to, or its target, and whether the rule has conditions or a comment.
func (c *Conn) targetOf(table *nftables.Table, r NFTRule) (target string, conditional bool, err error) {
	if comment, ok := userdata.GetString(r.UserData, userdata.TypeComment); ok && comment != "" {
		conditional = true
	}
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter:
		case *expr.Verdict:
			target = e.Chain
		case *expr.Masq:
			target = "MASQUERADE"
		case VerdictMap:
			conditional = true
			if target, err = c.jumpInMap(table, e.Name); err != nil {
				return "", false, err
			}
		case Extension:
			if conditional = conditional || !e.Target; e.Target {
				target = e.Name
			}
		default:
			conditional = true
		}
	}
	return target, conditional, nil
}

// jumpInMap returns a chain that a verdict map leads to, "" if there is none.
func (c *Conn) jumpInMap(table *nftables.Table, name string) (chain string, err error) {
	elements, err := c.GetSetElements(&nftables.Set{Table: table, Name: name})
	if err != nil {
		return "", fmt.Errorf("list the map %s: %w", name, err)
	}
	for _, e := range elements {
		if verdict, ok := ParseVerdict(e.Val); ok && verdict.Chain != "" {
			return verdict.Chain, nil
		}
	}
	return "", nil
}

// listChain returns the rules of one chain of a table that the program cannot show as a whole.
func listChain(ctx context.Context, path, table, chain string) ([]Rule, error) {
	text, err := Run(ctx, "", path, "-t", table, "-S", chain)
	if err != nil {
		return nil, err
	}
	var out []Rule
	for _, line := range strings.Split(text, "\n") {
		words, err := splitWords(line)
		if err != nil {
			return nil, err
		}
		if len(words) >= 2 && words[0] == "-A" {
			out = append(out, words)
		}
	}
	return out, nil
}

// replaceChain replaces the rules of one chain.
func (t *Table) replaceChain(chain string, rules []Rule) {
	others := slices.DeleteFunc(t.Rules, func(r Rule) bool { return r[1] == chain })
	t.Rules = append(others, rules...)
}
