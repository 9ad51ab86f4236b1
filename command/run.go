package command

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/hashicorp/cli"
)

// Run runs the command that args (without the program's name) ask for and
// returns the exit code.
func Run(args []string, m Meta) int {
	c := cli.NewCLI("leno", "leno "+m.Version)
	c.Args = args
	c.Commands = Commands(m)
	c.HelpFunc = help
	c.HelpWriter, c.ErrorWriter = m.Stdout, m.Stderr

	completing := m.Getenv("COMP_LINE") != ""
	switch {
	case completing || c.IsHelp() || c.IsVersion() || isAutocompletion(args):
	case len(args) == 0:
		fmt.Fprintln(m.Stderr, help(c.Commands))
		return exitUsage
	case strings.HasPrefix(args[0], "-"):
		fmt.Fprintf(m.Stderr, "Error: %s stands before the command, flags go after it\n\n%s\n", printable(args[0]), usageLine)
		return exitUsage
	case c.Commands[c.Subcommand()] == nil:
		fmt.Fprintf(m.Stderr, "Error: unknown command %q%s\n\n%s\n", args[0], didYouMean(args[0], topLevel(c.Commands)), usageLine)
		return exitUsage
	}
	code, err := c.Run()
	if err != nil {
		fmt.Fprintf(m.Stderr, "Error: %s\n", printable(err.Error()))
		return exitFailed
	}
	return code
}

// isAutocompletion says whether the shell's set-up is asked for.
func isAutocompletion(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		name := strings.TrimLeft(a, "-")
		return a != name && (name == "autocomplete-install" || name == "autocomplete-uninstall")
	})
}

const usageLine = "Usage: leno COMMAND [options] [arguments]\nFor the commands, leno -help"

// help is the list of commands that `leno` alone and `leno -help` print. The
// names of the environment stand here once rather than with every command.
func help(commands map[string]cli.CommandFactory) string {
	var b strings.Builder
	b.WriteString("Usage: leno COMMAND [options] [arguments]\n\nCommands:\n\n")
	for _, name := range topLevel(commands) {
		c, err := commands[name]()
		if err != nil {
			continue
		}
		fmt.Fprintf(&b, "  %-12s  %s\n", name, c.Synopsis())
	}
	b.WriteString(`
Environment, for every command that talks to the agent; flags win:

  LENO_ADDRESS     where the agent listens, default 127.0.0.1:5366
  LENO_TOKEN       Consul ACL token; else LENO_TOKEN_FILE,
                   CONSUL_HTTP_TOKEN, CONSUL_HTTP_TOKEN_FILE
  LENO_FORMAT      table or json
  LENO_CA_CERT, LENO_CLIENT_CERT, LENO_CLIENT_KEY, LENO_TLS_SERVER_NAME
                   for an agent that listens with TLS

Exit codes: 0 done, 1 failed, 2 wrong usage. leno COMMAND -help tells more;
leno -autocomplete-install sets up completion in your shell.`)
	return b.String()
}

func topLevel(commands map[string]cli.CommandFactory) []string {
	names := slices.Sorted(maps.Keys(commands))
	return slices.DeleteFunc(names, func(n string) bool { return strings.Contains(n, " ") })
}

// didYouMean is "; did you mean X?" for the nearest of names, or "" when none is
// near.
func didYouMean(word string, names []string) string {
	best, nearest := 3, ""
	for _, n := range names {
		if d := levenshtein.Distance(word, n, nil); d < best && d < len(n) {
			best, nearest = d, n
		}
	}
	if nearest == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", nearest)
}

// group is a command that only has subcommands.
type group struct {
	meta     Meta
	name     string
	synopsis string
	commands func() map[string]cli.CommandFactory
}

func (g *group) Synopsis() string { return g.synopsis }

func (g *group) Help() string { return g.usageLine() }

func (g *group) usageLine() string {
	return "Usage: leno " + g.name + " SUBCOMMAND [options] [arguments]"
}

// Run is reached only when no subcommand of that name exists.
func (g *group) Run(args []string) int {
	var names []string
	for name := range g.commands() {
		if sub, ok := strings.CutPrefix(name, g.name+" "); ok {
			names = append(names, sub)
		}
	}
	slices.Sort(names)
	text := "a subcommand is missing"
	if len(args) > 0 {
		text = fmt.Sprintf("unknown subcommand %q%s", args[0], didYouMean(args[0], names))
	}
	fmt.Fprintf(g.meta.Stderr, "Error: %s\n\n%s\nSubcommands: %s\n", text, g.usageLine(), strings.Join(names, ", "))
	return exitUsage
}
