package firewall

import (
	"fmt"
	"strings"
)

// arguments is one rule as iptables-save prints it, split into words without quotes, beginning with -A and the chain.
type arguments []string

// table is one table as iptables-save prints it.
type table struct {
	chains   []string
	policies map[string]string // of the base chains: ACCEPT or DROP
	rules    []arguments
}

// of returns the rules of one chain, in order.
func (t table) of(chain string) []arguments {
	var out []arguments
	for _, r := range t.rules {
		if r[1] == chain {
			out = append(out, r)
		}
	}
	return out
}

// target returns the chain or target that the rule jumps or goes to.
func (r arguments) target() (string, bool) {
	for i := 2; i+1 < len(r); i++ {
		if r[i] == "-j" || r[i] == "-g" {
			return r[i+1], true
		}
	}
	return "", false
}

// String returns the rule as iptables-restore reads it.
func (r arguments) String() string {
	out := make([]string, len(r))
	for i, arg := range r {
		if arg == "" || strings.ContainsAny(arg, " \t\"'\\") {
			arg = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(arg) + `"`
		}
		out[i] = arg
	}
	return strings.Join(out, " ")
}

// parseSave parses iptables-save's output into tables by name. Versions differ in which arguments they quote, so
// rules are compared as words. Truncated output is an error: nothing may be deleted or added because of it.
func parseSave(text string) (map[string]table, error) {
	tables, name, open := map[string]table{}, "", false
	for n, line := range strings.Split(text, "\n") {
		fail := func(what string) error { return fmt.Errorf("line %d of iptables-save: %s: %q", n+1, what, line) }
		t := tables[name]
		switch {
		case line == "" || line[0] == '#':
			continue
		case line[0] == '*':
			if open {
				return nil, fail("a table inside a table")
			}
			name, open = line[1:], true
			tables[name] = table{policies: map[string]string{}}
			continue
		case line == "COMMIT":
			open = false
			continue
		case !open:
			return nil, fail("outside of a table")
		case line[0] == ':':
			chain, rest, _ := strings.Cut(line[1:], " ")
			t.chains = append(t.chains, chain)
			if policy, _, _ := strings.Cut(rest, " "); policy != "-" {
				t.policies[chain] = policy
			}
		default:
			words, err := split(line)
			if err != nil {
				return nil, fail(err.Error())
			}
			if len(words) < 2 || words[0] != "-A" {
				return nil, fail("not a rule")
			}
			t.rules = append(t.rules, words)
		}
		tables[name] = t
	}
	if open {
		return nil, fmt.Errorf("output of iptables-save ends inside table %s", name)
	}
	return tables, nil
}

// split splits a line into words; double quotes hold words together and a backslash makes the next character literal.
func split(line string) (arguments, error) {
	var words arguments
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
