package cli

import (
	"maps"
	"slices"
	"strings"

	hashicorp "github.com/hashicorp/cli"
)

// Commands holds the commands of a program by name, for example "lease list". Each factory's
// command is used once.
type Commands map[string]hashicorp.CommandFactory

// Resolve returns the command that words begin with, or the most similar one, and the remaining
// words; "" if none is similar.
func (all Commands) Resolve(words []string) (name string, rest []string) {
	// Move flags behind the command.
	var early []string
	for len(words) > 0 && strings.HasPrefix(words[0], "-") {
		early, words = append(early, words[0]), words[1:]
	}
	words = append(slices.Clone(words), early...)
	if len(words) == 0 {
		return "", nil
	}
	first := words[0]
	if all[first] == nil {
		first = nearestName(first, all.topLevel())
	}
	if first == "" {
		// The words of a subcommand may be in the wrong order: list lease.
		if len(words) > 1 {
			if group := exactOrNearestName(words[1], all.topLevel()); all.isGroup(group) {
				if sub := exactOrNearestName(words[0], all.Subcommands(group)); sub != "" {
					return group + " " + sub, words[2:]
				}
			}
		}
		return "", nil
	}
	if !all.isGroup(first) {
		return first, words[1:]
	}
	if len(words) == 1 {
		return first, nil
	}
	if sub := exactOrNearestName(words[1], all.Subcommands(first)); sub != "" {
		return first + " " + sub, words[2:]
	}
	return first, words[1:]
}

// topLevel returns the names of the commands that are not subcommands, sorted.
func (all Commands) topLevel() []string {
	names := slices.Sorted(maps.Keys(all))
	return slices.DeleteFunc(names, func(n string) bool { return strings.Contains(n, " ") })
}

func (all Commands) isGroup(name string) bool {
	return name != "" && len(all.Subcommands(name)) > 0
}

// Subcommands returns the names of a group's subcommands, sorted.
func (all Commands) Subcommands(group string) []string {
	var names []string
	for name := range all {
		if sub, ok := strings.CutPrefix(name, group+" "); ok {
			names = append(names, sub)
		}
	}
	slices.Sort(names)
	return names
}

// firstExample returns the first command line in the help of a command.
func (all Commands) firstExample(name string) []string {
	if c, err := all[name](); err == nil {
		for _, e := range Examples(c.Help()) {
			return e
		}
	}
	return append(strings.Fields(name), "-help")
}

// Examples returns the command lines of leno in a help text: lines that begin with "$ leno ". Text
// after two spaces and shell syntax are not part of the command.
func Examples(help string) [][]string {
	var out [][]string
	for text := range strings.Lines(help) {
		_, text, ok := strings.Cut(strings.TrimSpace(text), "$ leno ")
		if !ok {
			continue
		}
		for _, end := range []string{"  ", " | ", " > ", " < ", " && "} {
			text, _, _ = strings.Cut(text, end)
		}
		out = append(out, strings.Fields(text))
	}
	return out
}
