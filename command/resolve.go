package command

import (
	"slices"
	"strings"

	"github.com/hashicorp/cli"
)

// resolve finds the command that words begin with, or the one nearest to it, and
// what follows; "" when nothing is near.
func resolve(commands map[string]cli.CommandFactory, words []string) (name string, rest []string) {
	// Flags stand behind the command.
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
		// The words of a subcommand the wrong way round: list lease.
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

// subcommands are those of a group, sorted.
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

// leaf is a new command of that name, false for a group.
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

// firstExample is the first command line that the help of a command shows.
func firstExample(commands map[string]cli.CommandFactory, name string) []string {
	if c, err := commands[name](); err == nil {
		for _, e := range examples(c.Help()) {
			return e
		}
	}
	return append(strings.Fields(name), "-help")
}

// examples are the command lines of leno in a help text: lines that begin with
// "$ leno ". What stands behind two spaces or is the shell's is not of the command.
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
