package firewall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// ownTable is the nftables table that is ours; tables whose names begin with it
// and a dash are, too.
const ownTable = "leno"

// Leftover is what is ours in one table of the kernel's, as one program shows it.
type Leftover struct {
	Program string   // iptables-nft, ip6tables-legacy, nft...
	Table   string   // "nat"; of nft with its family before it: "inet leno"
	Parts   []string // in words: "chain LENO-FORWARD", "jump from FORWARD to LENO-FORWARD", "rule ..."

	path  string
	args  []string
	input string // for path, takes all of it away at once
}

// Remove takes it away, in one transaction, if it is still there as it was
// found.
func (l Leftover) Remove(ctx context.Context) error {
	if _, err := run(ctx, l.input, l.path, l.args...); err != nil {
		return fmt.Errorf("write table %s: %w", l.Table, err)
	}
	return nil
}

// Leftovers finds what is ours in the kernel, whichever variant of which program
// made it and whenever: chains and their jumps, and tables of nftables. With a
// network it finds that network's rules, and a chain or table that has no others.
// A program that is not installed made nothing. It goes on past a program that
// fails and joins the errors. Programs are started from the calling thread, hence
// in its network namespace.
func Leftovers(ctx context.Context, network string) ([]Leftover, error) {
	var out []Leftover
	var errs []error
	for _, command := range []string{"iptables", "ip6tables"} {
		for _, path := range variantsOf(ctx, command) {
			tables, err := list(ctx, path)
			if err != nil && !unsupported(err) {
				errs = append(errs, err)
			}
			for _, name := range sortedTables(tables) {
				input, parts := leftIn(name, tables[name], network)
				if input != "" {
					out = append(out, Leftover{Program: baseName(path), Table: name, Parts: parts,
						path: path + "-restore", args: []string{"--noflush", "-w", lockWait}, input: input})
				}
			}
		}
	}
	found, err := leftTables(ctx, network)
	return append(out, found...), errors.Join(append(errs, err)...)
}

// variantsOf is the paths of the programs for one family, each variant once: the
// kernel keeps the rules of one where the other does not see them.
func variantsOf(ctx context.Context, command string) (paths []string) {
	have := map[string]bool{}
	for _, variant := range []string{"legacy", "nft"} {
		if path, err := exec.LookPath(command + "-" + variant); err == nil {
			paths, have[variant] = append(paths, path), true
		}
	}
	path, err := exec.LookPath(command)
	if err != nil {
		return paths
	}
	variant := "legacy" // which is all there was before it said so
	if version, err := run(ctx, "", path, "--version"); err == nil && strings.Contains(version, "nf_tables") {
		variant = "nft"
	}
	if !have[variant] {
		paths = append(paths, path)
	}
	return paths
}

// unsupported says of a program's error that the kernel has not what it works on,
// hence nothing of ours in it.
func unsupported(err error) bool {
	return strings.Contains(strings.ToLower(err.Error()), "not supported")
}

// leftIn is the input for iptables-restore --noflush that takes from one table
// what is ours or, if one is named, a network's, and what that is. Both are
// empty when there is nothing.
func leftIn(name string, t table, network string) (input string, parts []string) {
	gone := func(chain string) bool { return strings.HasPrefix(chain, ownPrefix) }
	var lines []string
	if network != "" {
		left := map[string]int{} // rules of others
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

// comment is what stands at the rule for people.
func (r arguments) comment() string {
	if i := slices.Index(r, "--comment"); i >= 0 && i+1 < len(r) {
		return r[i+1]
	}
	return ""
}

func sortedTables(tables map[string]table) []string {
	names := make([]string, 0, len(tables))
	for name := range tables {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func baseName(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// leftTables is Leftovers of nftables.
func leftTables(ctx context.Context, network string) ([]Leftover, error) {
	path, err := exec.LookPath("nft")
	if err != nil {
		return nil, nil
	}
	all, err := nftList(ctx, path, "list", "tables")
	if err != nil {
		if unsupported(err) {
			return nil, nil
		}
		return nil, err
	}
	var out []Leftover
	var errs []error
	for _, o := range all {
		t := o.Table
		if t == nil || t.Name != ownTable && !strings.HasPrefix(t.Name, ownTable+"-") {
			continue
		}
		l := Leftover{Program: "nft", Table: t.Family + " " + t.Name, path: path, args: []string{"-f", "-"}}
		if network == "" {
			l.input, l.Parts = "delete table "+l.Table+"\n", []string{"table " + l.Table}
		} else if l.input, l.Parts, err = nftOf(ctx, path, l.Table, network); err != nil {
			errs = append(errs, err)
		}
		if l.input != "" {
			out = append(out, l)
		}
	}
	return out, errors.Join(errs...)
}

// nftOf is what takes one network's rules out of a table, or the table when it has
// no others.
func nftOf(ctx context.Context, path, name, network string) (input string, parts []string, err error) {
	all, err := nftList(ctx, path, append([]string{"-a", "list", "table"}, strings.Fields(name)...)...)
	if err != nil {
		return "", nil, err
	}
	others := 0
	for _, o := range all {
		switch {
		case o.Rule == nil:
		case o.Rule.Comment == (rule{network: network}).comment():
			input += fmt.Sprintf("delete rule %s %s handle %d\n", name, o.Rule.Chain, o.Rule.Handle)
			parts = append(parts, fmt.Sprintf("rule %d of chain %s", o.Rule.Handle, o.Rule.Chain))
		default:
			others++
		}
	}
	if input != "" && others == 0 {
		return "delete table " + name + "\n", []string{"table " + name}, nil
	}
	return input, parts, nil
}

// nftObject is one thing that `nft -j list` shows, as far as we look.
type nftObject struct {
	Table *struct{ Family, Name string }
	Rule  *struct {
		Chain, Comment string
		Handle         int
	}
}

func nftList(ctx context.Context, path string, args ...string) ([]nftObject, error) {
	text, err := run(ctx, "", path, append([]string{"-j"}, args...)...)
	if err != nil {
		return nil, err
	}
	var shown struct{ Nftables []nftObject }
	if err := json.Unmarshal([]byte(text), &shown); err != nil {
		return nil, fmt.Errorf("output of %s: %w", path, err)
	}
	return shown.Nftables, nil
}
