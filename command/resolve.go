package command

import (
	"slices"
	"strings"

	"github.com/hashicorp/cli"
)

// resolve returns the command that words begin with, or the most similar one, and the remaining
// words; "" if none is similar.
func resolve(commands map[string]cli.CommandFactory, words []string) (name string, rest []string) {
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
	if commands[first] == nil {
		first = nearest(first, topLevel(commands))
	}
	if first == "" {
		// The words of a subcommand may be in the wrong order: list lease.
		if len(words) > 1 {
			if group := exactOrNearest(words[1], topLevel(commands)); isGroup(commands, group) {
				if sub := exactOrNearest(words[0], subcommands(commands, group)); sub != "" {
					return group + " " + sub, words[2:]
				}
			}
		}
		return "", nil
	}
	if !isGroup(commands, first) {
		return first, words[1:]
	}
	if len(words) == 1 {
		return first, nil
	}
	if sub := exactOrNearest(words[1], subcommands(commands, first)); sub != "" {
		return first + " " + sub, words[2:]
	}
	return first, words[1:]
}

func exactOrNearest(word string, names []string) string {
	if slices.Contains(names, word) {
		return word
	}
	return nearest(word, names)
}

func isGroup(commands map[string]cli.CommandFactory, name string) bool {
	return name != "" && len(subcommands(commands, name)) > 0
}

// subcommands returns those of a group, sorted.
func subcommands(commands map[string]cli.CommandFactory, group string) []string {
	var names []string
	for name := range commands {
		if sub, ok := strings.CutPrefix(name, group+" "); ok {
			names = append(names, sub)
		}
	}
	slices.Sort(names)
	return names
}

// leaf returns a new command of that name, false for a group.
func leaf(commands map[string]cli.CommandFactory, name string) (*command, bool) {
	if commands[name] == nil {
		return nil, false
	}
	c, err := commands[name]()
	if err != nil {
		return nil, false
	}
	out, ok := c.(*command)
	return out, ok
}

// firstExample returns the first command line in the help of a command.
func firstExample(commands map[string]cli.CommandFactory, name string) []string {
	if c, err := commands[name](); err == nil {
		for _, e := range examples(c.Help()) {
			return e
		}
	}
	return append(strings.Fields(name), "-help")
}

// examples returns the command lines of leno in a help text: lines that begin with "$ leno ". Text
// after two spaces and shell syntax are not part of the command.
func examples(help string) [][]string {
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
