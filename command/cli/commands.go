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

// topLevel returns the names of the commands that are not subcommands, sorted.
func (all Commands) topLevel() []string {
	names := slices.Sorted(maps.Keys(all))
	return slices.DeleteFunc(names, func(n string) bool { return strings.Contains(n, " ") })
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
		for _, end := range []string{"  ", " | ", " > ", " >> ", " < ", " && "} {
			text, _, _ = strings.Cut(text, end)
		}
		out = append(out, strings.Fields(text))
	}
	return out
}
