package config

import (
	"fmt"
	"regexp"
	"strings"
)

// Reference is one option or block of the annotated example, config.hcl.example.
type Reference struct {
	Name  string // "etcd.tls.ca_file"; labels are written as in Settings: "network.*.ipv4.prefix"
	Block bool   // a block, whose options follow
	Value string // of an option, as the example has it: `"2m"`
	Text  string // what the comment says, in one line
}

var (
	commentedBlock = regexp.MustCompile(`^(\s*)# (\w+) \{$`)
	blockLine      = regexp.MustCompile(`^\s*(\w+)(?: "([^"]+)")? \{$`)
	optionLine     = regexp.MustCompile(`^\s*(\w+)\s*= ("(?:[^"\\]|\\.)*"|\[[^\]]*\]|\{[^}]*\}|\S+)\s*(?:# (.*))?$`)
)

// ReadReference reads the options of config.hcl.example with their comments, in its order. A comment above several
// options that follow each other describes all of them, and blocks in comments count as well.
func ReadReference(example string) ([]Reference, error) {
	var (
		out       []Reference
		path      []string
		text      []string // of the comment above
		described string   // what the comment above the last option said, "" after an empty line
		within    string   // the indentation and mark of a block in a comment
	)
	for number, line := range strings.Split(strings.TrimSuffix(example, "\n"), "\n") {
		if m := commentedBlock.FindStringSubmatch(line); m != nil && within == "" {
			within = m[1] + "#"
		}
		inComment := within != "" && strings.HasPrefix(line, within)
		if inComment {
			line = strings.TrimPrefix(strings.TrimPrefix(line, within), " ")
		}
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "":
			text, described = nil, ""
		case strings.HasPrefix(trimmed, "#"):
			text = append(text, strings.TrimSpace(strings.TrimPrefix(trimmed, "#")))
		case trimmed == "}":
			if len(path) == 0 {
				return nil, fmt.Errorf("line %d ends no block", number+1)
			}
			if path = path[:len(path)-1]; inComment && len(path) == strings.Count(within, "  ") {
				within = ""
			}
			text, described = nil, ""
		case blockLine.MatchString(line):
			m := blockLine.FindStringSubmatch(line)
			name := m[1]
			switch {
			case name == "network":
				name += ".*"
			case m[2] != "":
				name += "." + m[2]
			}
			path = append(path, name)
			out = append(out, Reference{Name: strings.Join(path, "."), Block: true, Text: sentence(text)})
			text, described = nil, ""
		case optionLine.MatchString(line):
			m := optionLine.FindStringSubmatch(line)
			switch {
			case m[3] != "":
				described = sentence(m[3:])
			case len(text) > 0:
				described = sentence(text)
			}
			name := strings.Join(append(path[:len(path):len(path)], m[1]), ".")
			out = append(out, Reference{Name: name, Value: m[2], Text: described})
			text = nil
		default:
			return nil, fmt.Errorf("line %d is neither a comment, an option nor a block: %s", number+1, line)
		}
	}
	if len(path) > 0 {
		return nil, fmt.Errorf("the block %s does not end", strings.Join(path, "."))
	}
	return out, nil
}

// sentence joins the lines of a comment and ends it with a full stop. "Example." only says that the values below are no
// defaults.
func sentence(lines []string) string {
	text := strings.TrimPrefix(strings.Join(lines, " "), "Example. ")
	if text == "" || strings.HasSuffix(text, ".") {
		return text
	}
	return text + "."
}
