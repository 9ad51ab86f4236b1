package netfilter

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Rule is one rule as iptables-save prints it, split into words without quotes: "-A", "FORWARD", "-j", "DROP".
type Rule []string

// Table is one table as iptables-save prints it.
type Table struct {
	Chains   []string
	Policies map[string]string // of the base chains: ACCEPT or DROP
	Rules    []Rule

	// How many packets each of Rules and each base chain's policy has matched; nil unless ListCounted has read them.
	Packets       []uint64
	PolicyPackets map[string]uint64
}

// Chain returns the rules of one chain, in order.
func (t Table) Chain(chain string) []Rule {
	var out []Rule
	for _, r := range t.Rules {
		if r[1] == chain {
			out = append(out, r)
		}
	}
	return out
}

// HasChain reports whether the table has a chain of that name: a target of that name is then a jump and not a verdict.
func (t Table) HasChain(name string) bool { return slices.Contains(t.Chains, name) }

// Target returns the chain or target that the rule jumps or goes to.
func (r Rule) Target() (string, bool) {
	for i := 2; i+1 < len(r); i++ {
		if r[i] == "-j" || r[i] == "-g" {
			return r[i+1], true
		}
	}
	return "", false
}

// Comment returns the rule's comment, "" when it has none.
func (r Rule) Comment() string {
	if i := slices.Index(r, "--comment"); i >= 0 && i+1 < len(r) {
		return r[i+1]
	}
	return ""
}

// String returns the rule as iptables-restore reads it.
func (r Rule) String() string {
	out := make([]string, len(r))
	for i, arg := range r {
		if arg == "" || strings.ContainsAny(arg, " \t\"'\\") {
			arg = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(arg) + `"`
		}
		out[i] = arg
	}
	return strings.Join(out, " ")
}

// ShellText returns a rule that String has returned, for a shell.
func ShellText(rule string) string {
	words, err := splitWords(rule)
	if err != nil {
		return ""
	}
	for i, word := range words {
		if !plainWord.MatchString(word) {
			words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// plainWord matches a word that means itself in a shell.
var plainWord = regexp.MustCompile(`^[\w./:,=+@%-]+$|^!$`)

// UnreadableError reports tables that a program of iptables cannot show, or only in part, because another program put
// something into them that iptables has no words for. What such a table contains is unknown.
type UnreadableError struct {
	Tables []string // sorted
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("iptables-save cannot show the table %s, which has rules or chains that only nft can write: "+
		"move them to a table of their own", strings.Join(e.Tables, " and the table "))
}

// unreadableLine matches the comment that iptables-nft-save prints instead of a table, or before the part of it that it
// can show. It exits with 0 even so.
var unreadableLine = regexp.MustCompile("^# Table [`'\"]?([^`'\" ]+)['\"]? .*incompatible")

// ParseSave parses iptables-save's output into tables by name. Versions differ in which arguments they quote, so
// rules are compared as words. Truncated output is an error: nothing may be deleted or added because of it. With an
// *UnreadableError it returns the other tables.
func ParseSave(text string) (map[string]Table, error) {
	tables, name, open := map[string]Table{}, "", false
	unreadable := map[string]bool{}
	for n, line := range strings.Split(text, "\n") {
		fail := func(what string) error {
			return fmt.Errorf("line %d of iptables-save (table %q): %s: %q", n+1, name, what, line)
		}
		t := tables[name]
		switch {
		case line == "":
			continue
		case line[0] == '#':
			if m := unreadableLine.FindStringSubmatch(line); m != nil {
				unreadable[m[1]] = true
			}
			continue
		case line[0] == '*':
			if open {
				return nil, fail("a table inside a table")
			}
			name, open = line[1:], true
			tables[name] = Table{Policies: map[string]string{}}
			continue
		case line == "COMMIT":
			open = false
			continue
		case !open:
			return nil, fail("outside of a table")
		case line[0] == ':':
			chain, rest, _ := strings.Cut(line[1:], " ")
			t.Chains = append(t.Chains, chain)
			if policy, _, _ := strings.Cut(rest, " "); policy != "-" {
				t.Policies[chain] = policy
			}
		default:
			words, err := splitWords(line)
			if err != nil {
				return nil, fail(err.Error())
			}
			if len(words) < 2 || words[0] != "-A" {
				return nil, fail("not a rule")
			}
			t.Rules = append(t.Rules, words)
		}
		tables[name] = t
	}
	if open {
		return nil, fmt.Errorf("output of iptables-save ends inside table %s", name)
	}
	if len(unreadable) > 0 {
		maps.DeleteFunc(tables, func(name string, _ Table) bool { return unreadable[name] })
		return tables, &UnreadableError{Tables: slices.Sorted(maps.Keys(unreadable))}
	}
	return tables, nil
}

// splitWords splits a line into words. Double quotes hold words together, and a backslash in them makes the next
// character literal.
func splitWords(line string) (Rule, error) {
	var words Rule
	var word strings.Builder
	inWord, quoted := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && quoted && i+1 < len(line):
			i++
			word.WriteByte(line[i])
		case c == '"':
			quoted, inWord = !quoted, true
		case c == ' ' && !quoted:
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if quoted {
		return nil, fmt.Errorf("a quote is not closed")
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}
