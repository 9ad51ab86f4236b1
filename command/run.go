package command

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/hashicorp/cli"
)

// Run runs the command that args (without the program's name) name and returns the exit code. A
// command whose output could not be written has failed, even if its work succeeded.
func Run(args []string, m Meta) int {
	out := &checkedOutput{Writer: m.Stdout}
	m.Stdout = out
	code := run(args, m)
	if out.err == nil {
		return code
	}
	if !out.reported {
		m.writeError(out.err)
	}
	if code == exitDone {
		code = exitFailed
	}
	return code
}

func run(args []string, m Meta) int {
	args = helpLast(args)
	c := cli.NewCLI("leno", "leno "+m.Version)
	c.Args = args
	c.Commands = Commands(m)
	c.HelpFunc = func(commands map[string]cli.CommandFactory) string { return help(m, commands) }
	// Printed below: cli would also report a failed write, which Run reports itself.
	var text bytes.Buffer
	c.HelpWriter, c.ErrorWriter = &text, m.Stderr

	completing := m.Getenv("COMP_LINE") != ""
	switch unknown := c.Subcommand() != "" && c.Commands[c.Subcommand()] == nil; {
	case completing:
	case c.IsHelp() && unknown:
		return wrongCommand(m, args, fmt.Sprintf("unknown command %q%s", c.Subcommand(), didYouMean(c.Subcommand(), topLevel(c.Commands))))
	case c.IsHelp() || c.IsVersion() || isAutocompletion(args):
	case len(args) == 0:
		fmt.Fprintln(m.Stderr, help(m, c.Commands))
		return exitUsage
	case strings.HasPrefix(args[0], "-"):
		first := strings.TrimPrefix(shown(args[:1]), "leno ") // leaves out the value if it is a secret
		return wrongCommand(m, args, first+" stands before the command, flags go after it")
	case c.Commands[c.Subcommand()] == nil:
		return wrongCommand(m, args, fmt.Sprintf("unknown command %q%s", args[0], didYouMean(args[0], topLevel(c.Commands))))
	}
	code, err := c.Run()
	if text.Len() > 0 {
		_, _ = m.Stdout.Write(text.Bytes()) // Stdout remembers an error
	}
	if err != nil {
		m.writeError(err)
		return exitFailed
	}
	return code
}

// helpLast turns the word help before a command into -help after it.
func helpLast(args []string) []string {
	if len(args) == 0 || args[0] != "help" {
		return args
	}
	rest := slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "help" })
	return append(rest, "-help")
}

// wrongCommand handles a line that names no command.
func wrongCommand(m Meta, args []string, text string) int {
	fmt.Fprintf(m.Stderr, "%s\nTry:   %s\n%s\n", m.wrongText(text), shown(correct(m, args)), usageLine)
	return exitUsage
}

// isAutocompletion reports whether the arguments ask to set up shell completion.
func isAutocompletion(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		name := strings.TrimLeft(a, "-")
		return a != name && (name == "autocomplete-install" || name == "autocomplete-uninstall")
	})
}

const usageLine = "Usage: leno COMMAND [options] [arguments]\nFor the commands, leno -help"

// help returns the text of `leno` alone and `leno -help`: where to start when something does not
// work, the commands, and their common options.
func help(m Meta, commands map[string]cli.CommandFactory) string {
	var b strings.Builder
	b.WriteString(`Usage: leno COMMAND [options] [arguments]

Something does not work? Start with leno doctor on that host: it examines the
host and the paths to the other hosts, and says what to do.

Commands:

`)
	for _, name := range topLevel(commands) {
		c, err := commands[name]()
		if err != nil {
			continue
		}
		fmt.Fprintf(&b, "  %-12s  %s\n", name, c.Synopsis())
	}
	b.WriteString(`
Common options, of every command that asks the agent; flags win over the
environment:

`)
	const column = 25
	commonOptions(m).VisitAll(func(f *flag.Flag) {
		lead := fmt.Sprintf("  %-*s", column-2, optionName(f))
		for _, line := range wrap(optionText(f), width-column) {
			b.WriteString(lead + line + "\n")
			lead = strings.Repeat(" ", column)
		}
	})
	b.WriteString(`
Exit codes: 0 done, 1 failed, 2 wrong usage. leno COMMAND -help tells more;
leno -autocomplete-install sets up completion in your shell.`)
	return b.String()
}

func topLevel(commands map[string]cli.CommandFactory) []string {
	names := slices.Sorted(maps.Keys(commands))
	return slices.DeleteFunc(names, func(n string) bool { return strings.Contains(n, " ") })
}

// didYouMean returns "; did you mean X?" for the most similar name, or "" if none is similar.
func didYouMean(word string, names []string) string {
	if near := nearest(word, names); near != "" {
		return fmt.Sprintf("; did you mean %s?", printable(near))
	}
	return ""
}

// nearest returns the name most similar to word: at most two typing mistakes away, or the only one
// that word is a prefix of. It returns "" for none.
func nearest(word string, names []string) string {
	best, near := 3, ""
	var begun []string
	for _, n := range names {
		if d := levenshtein.Distance(word, n, nil); d < best && d < len(n) {
			best, near = d, n
		}
		if len(word) > 1 && strings.HasPrefix(n, word) {
			begun = append(begun, n)
		}
	}
	if len(begun) == 1 {
		return begun[0]
	}
	return near
}

// group is a command that only has subcommands.
type group struct {
	meta     Meta
	name     string
	synopsis string
	commands func() map[string]cli.CommandFactory
}

func (g *group) Synopsis() string { return g.synopsis }

// Help returns the simplest example of each subcommand.
func (g *group) Help() string {
	var b strings.Builder
	b.WriteString(g.usageLine() + "\n")
	for _, sub := range subcommands(g.commands(), g.name) {
		b.WriteString("\n  $ " + shown(firstExample(g.commands(), g.name+" "+sub)))
	}
	return b.String()
}

func (g *group) usageLine() string {
	return "Usage: leno " + g.name + " SUBCOMMAND [options] [arguments]"
}

// Run is only called if there is no subcommand of that name.
func (g *group) Run(args []string) int {
	if len(args) > 0 && args[0] == "help" {
		return Run(append([]string{"help", g.name}, args[1:]...), g.meta)
	}
	names := subcommands(g.commands(), g.name)
	text := "a subcommand is missing"
	if len(args) > 0 {
		text = fmt.Sprintf("unknown subcommand %q%s", args[0], didYouMean(args[0], names))
	}
	fmt.Fprintf(g.meta.Stderr, "%s\nTry:   %s\n%s\nSubcommands: %s\n", g.meta.wrongText(text),
		shown(correct(g.meta, append([]string{g.name}, args...))), g.usageLine(), strings.Join(names, ", "))
	return exitUsage
}
