package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"

	hashicorp "github.com/hashicorp/cli"
)

// Run runs the command that args (without the program's name) name and returns the exit code.
// commands returns the commands of the program. A command whose output could not be written has
// failed, even if its work succeeded.
func Run(args []string, m Meta, commands func(Meta) Commands) int {
	out := &checkedOutput{Writer: m.Stdout}
	m.Stdout = out
	code := commands(m).run(args, m)
	if out.err == nil {
		return code
	}
	if !out.reported {
		m.WriteError(out.err)
	}
	if code == ExitDone {
		code = ExitFailed
	}
	return code
}

// NewCommands returns the commands of the specs. groups holds the synopsis of each command that
// only has subcommands, by its name.
func NewCommands(m Meta, groups map[string]string, specs ...func(Meta) Spec) Commands {
	all := Commands{}
	for _, constructor := range specs {
		all[constructor(m).Name] = func() (hashicorp.Command, error) {
			return newCommand(m, constructor(m)), nil
		}
	}
	for name, synopsis := range groups {
		all[name] = func() (hashicorp.Command, error) {
			return &commandGroup{meta: m, all: all, name: name, synopsis: synopsis}, nil
		}
	}
	return all
}

func (all Commands) run(args []string, m Meta) int {
	args = helpLast(args)
	c := hashicorp.NewCLI("leno", "leno "+m.Version)
	c.Args = args
	c.Commands = all
	c.HelpFunc = func(map[string]hashicorp.CommandFactory) string { return all.help(m) }
	// Printed below: cli would also report a failed write, which Run reports itself.
	var text bytes.Buffer
	c.HelpWriter, c.ErrorWriter = &text, m.Stderr

	completing := m.Getenv("COMP_LINE") != ""
	c.Autocomplete = completing // otherwise, it adds flags that change the files of shells
	// These are the names under which it would offer those flags. It offers help and version, too.
	c.AutocompleteInstall, c.AutocompleteUninstall = "help", "version"
	switch unknown := c.Subcommand() != "" && all[c.Subcommand()] == nil; {
	case completing:
	case c.IsHelp() && unknown:
		return wrongCommand(m, fmt.Sprintf("unknown command %q%s", c.Subcommand(),
			didYouMean(c.Subcommand(), all.topLevel())))
	case c.IsHelp() || c.IsVersion():
	case len(args) == 0:
		fmt.Fprintln(m.Stderr, all.help(m))
		return ExitUsage
	case strings.HasPrefix(args[0], "-"):
		name, _, _ := strings.Cut(args[0], "=") // the value may be a secret
		return wrongCommand(m, name+" is before the command; flags go after it")
	case all[c.Subcommand()] == nil:
		return wrongCommand(m, fmt.Sprintf("unknown command %q%s", args[0], didYouMean(args[0], all.topLevel())))
	}
	code, err := c.Run()
	if text.Len() > 0 {
		_, _ = m.Stdout.Write(text.Bytes()) // Stdout remembers an error
	}
	if err != nil {
		m.WriteError(err)
		return ExitFailed
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

// wrongCommand prints the error for a command line that names no command.
func wrongCommand(m Meta, text string) int {
	fmt.Fprintf(m.Stderr, "%s\n%s\n", m.errorText(text), usageLine)
	return ExitUsage
}

// Run parses the words, runs the command, and turns its error into text and an exit code.
func (c *Command) Run(words []string) int {
	if len(words) == 1 && words[0] == "help" {
		fmt.Fprintln(c.meta.Stdout, c.Help())
		return ExitDone
	}
	args, err := c.Parse(words)
	if err == nil {
		err = c.Spec.Run(context.Background(), args)
	}
	var usage *usageError
	var unusable *unusableConfig
	switch {
	case err == nil:
		return ExitDone
	case errors.Is(err, ErrReported):
		return ExitFailed
	case errors.As(err, &usage):
		fmt.Fprintf(c.meta.Stderr, "%s\n%s\nFor more, leno %s -help\n", c.meta.errorText(usage.text), c.UsageLine(),
			c.Spec.Name)
		return ExitUsage
	case errors.As(err, &unusable):
		c.meta.WriteError(err)
		return ExitConfig
	}
	c.meta.WriteError(err)
	return ExitFailed
}

const usageLine = "Usage: leno COMMAND [options] [arguments]\nFor the commands, leno -help"

// help returns the text of `leno` alone and `leno -help`: where to start when something does not
// work, the commands, and their common options.
func (all Commands) help(m Meta) string {
	var b strings.Builder
	b.WriteString(`Usage: leno COMMAND [options] [arguments]

Something does not work? Start with leno doctor on that host: it examines the
host and the paths to the other hosts, and suggests fixes.

Commands:

`)
	for _, name := range all.topLevel() {
		c, err := all[name]()
		if err != nil {
			continue
		}
		fmt.Fprintf(&b, "  %-12s  %s\n", name, c.Synopsis())
	}
	b.WriteString(`
Common options of every command that calls the agent; flags take precedence
over the environment:

`)
	const column = 25
	commonOptions(m).VisitAll(func(f *flag.Flag) {
		lead := fmt.Sprintf("  %-*s", column-2, OptionName(f))
		for _, line := range Wrap(optionText(f), Width-column) {
			b.WriteString(lead + line + "\n")
			lead = strings.Repeat(" ", column)
		}
	})
	b.WriteString(`
Exit codes: 0 done, 1 failed, 2 wrong usage. leno COMMAND -help explains one
command; leno completion sets up completion in your shell.`)
	return b.String()
}

// commandGroup is a command that only has subcommands.
type commandGroup struct {
	meta     Meta
	all      Commands // of the program
	name     string
	synopsis string
}

func (g *commandGroup) Synopsis() string { return g.synopsis }

// Help returns the simplest example of each subcommand.
func (g *commandGroup) Help() string {
	var b strings.Builder
	b.WriteString(g.usageLine() + "\n")
	for _, sub := range g.all.Subcommands(g.name) {
		b.WriteString("\n  $ leno " + strings.Join(g.all.firstExample(g.name+" "+sub), " "))
	}
	return b.String()
}

func (g *commandGroup) usageLine() string {
	return "Usage: leno " + g.name + " SUBCOMMAND [options] [arguments]"
}

// Run is only called if there is no subcommand of that name.
func (g *commandGroup) Run(args []string) int {
	if len(args) > 0 && args[0] == "help" {
		return g.all.run(append([]string{"help", g.name}, args[1:]...), g.meta)
	}
	names := g.all.Subcommands(g.name)
	text := "a subcommand is missing"
	if len(args) > 0 {
		text = fmt.Sprintf("unknown subcommand %q%s", args[0], didYouMean(args[0], names))
	}
	fmt.Fprintf(g.meta.Stderr, "%s\n%s\nSubcommands: %s\n", g.meta.errorText(text), g.usageLine(),
		strings.Join(names, ", "))
	return ExitUsage
}
