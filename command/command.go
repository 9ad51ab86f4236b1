package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/cli"
	"github.com/posener/complete"

	"github.com/lenonet/leno/agent/config"
)

// errReported ends a command with exit code 1 when everything has already been printed.
var errReported = errors.New("reported")

// usageError is a mistake on the command line; its exit code is 2.
type usageError struct {
	text string
	fix  fix // nil if the nearest valid command line is unknown
}

func (e *usageError) Error() string { return e.text }

// usageErrorf returns the error for a mistake on the command line whose fix is not known. The user
// is shown an example of the command.
func usageErrorf(format string, args ...any) error {
	return &usageError{text: fmt.Sprintf(format, args...)}
}

// usageErrorWithFix returns the error for a mistake on the command line. The user is shown the
// corrected command line.
func usageErrorWithFix(f fix, format string, args ...any) error {
	return &usageError{text: fmt.Sprintf(format, args...), fix: f}
}

// isUsageError reports whether an error is a mistake on the command line.
func isUsageError(err error) bool {
	var usage *usageError
	return errors.As(err, &usage)
}

// configError is an error in a configuration that an agent cannot start with.
type configError struct{ error }

func (e *configError) Unwrap() error { return e.error }

// newConfigError marks an error as one in the configuration. Its exit code is 78, because starting
// again does not help.
func newConfigError(err error) error { return &configError{err} }

// spec describes one command. A constructor returns it with flags bound to its own variables, so
// each spec is used only once.
type spec struct {
	name     string // for example "lease show"
	args     string // for the usage line, for example "[NETWORK] SUBNET"
	min, max int    // number of arguments; max -1 for any number
	synopsis string // part of a line, for the list of commands
	help     string // paragraphs, wrapped at 78 columns, and examples: lines "  $ leno …", the simplest first

	flags   func(*flag.FlagSet) // declares the flags; nil for none
	predict complete.Predictor  // completes arguments; nil for none
	values  complete.Flags      // completes the values of flags whose names do not show what they take
	run     func(ctx context.Context, args []string) error
}

// command adapts a spec to cli.Command.
type command struct {
	meta  Meta
	all   commandMap // of the program
	spec  spec
	flags *flag.FlagSet
}

var (
	_ cli.Command             = (*command)(nil)
	_ cli.CommandAutocomplete = (*command)(nil)
)

func newCommand(m Meta, all commandMap, s spec) *command {
	c := &command{meta: m, all: all, spec: s, flags: flag.NewFlagSet(s.name, flag.ContinueOnError)}
	c.flags.SetOutput(io.Discard)
	c.flags.Usage = func() {}
	if s.flags != nil {
		s.flags(c.flags)
	}
	return c
}

// Run parses the words, runs the command, and turns its error into text and an exit code.
func (c *command) Run(words []string) int {
	if len(words) == 1 && words[0] == "help" {
		fmt.Fprintln(c.meta.Stdout, c.Help())
		return exitDone
	}
	args, err := c.parse(words)
	if err == nil {
		err = c.spec.run(context.Background(), args)
	}
	if similar := suggestion(err, args); similar != "" {
		err = fmt.Errorf("%w; did you mean %s?", err, similar)
	}
	var usage *usageError
	var unusable *configError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errReported):
		return exitFailed
	case errors.As(err, &usage):
		fmt.Fprintf(c.meta.Stderr, "%s\nTry:   %s\n%s\nFor more, leno %s -help\n", c.meta.errorText(usage.text), shellSyntax(c.try(usage, words)), c.usageLine(), c.spec.name)
		return exitUsage
	case errors.As(err, &unusable):
		c.meta.writeError(err)
		return exitConfig
	}
	c.meta.writeError(err)
	return exitFailed
}

// try returns the valid command line nearest to a wrong one, or an example.
func (c *command) try(err *usageError, words []string) []string {
	if err.fix == nil {
		return c.all.firstExample(c.spec.name)
	}
	return c.all.correct(append(strings.Fields(c.spec.name), c.applyFix(err.fix, words)...))
}

// writeError prints why a command failed.
func (m Meta) writeError(err error) {
	if out, ok := m.Stdout.(*checkedOutput); ok && out.err != nil && errors.Is(err, out.err) {
		out.reported = true
	}
	var files *config.Errors
	if errors.As(err, &files) {
		writeConfigErrors(m.Stderr, files)
		return
	}
	io.WriteString(m.Stderr, m.errorText(err.Error()))
}

// writeConfigErrors prints all errors of configuration files, each with its position and source
// line.
func writeConfigErrors(w io.Writer, e *config.Errors) {
	fmt.Fprint(w, printable(e.Render(width, false)))
	fmt.Fprintln(w, plural(len(e.Diags), "error")+" in the configuration")
}

// errorText returns "Error: " and the text. On a terminal, long lines are broken between words;
// elsewhere they stay whole, because programs search them.
func (m Meta) errorText(text string) string {
	var out strings.Builder
	for line := range strings.SplitSeq("Error: "+printable(text), "\n") {
		if m.ErrorTerminal && columnsOf(line) > width {
			note(&out, "", line)
		} else {
			fmt.Fprintln(&out, line)
		}
	}
	return out.String()
}

// parse accepts flags before, between and after the arguments; "--" ends them.
func (c *command) parse(words []string) ([]string, error) {
	var rest []string
	for args := words; len(args) > 0; {
		if err := c.flags.Parse(args); err != nil {
			return nil, c.flagError(err)
		}
		left := c.flags.Args()
		consumed := args[:len(args)-len(left)]
		if len(consumed) > 0 && consumed[len(consumed)-1] == "--" {
			rest = append(rest, left...)
			break
		}
		if len(left) == 0 {
			break
		}
		rest, args = append(rest, left[0]), left[1:]
	}
	switch {
	case len(rest) < c.spec.min:
		return nil, usageErrorWithFix(c.complete, "%s is missing", c.missing(len(rest)))
	case c.spec.max >= 0 && len(rest) > c.spec.max:
		return nil, c.surplus(words, rest)
	}
	return rest, nil
}

// missing returns the name of the first missing required argument.
func (c *command) missing(have int) string {
	var required []string
	for word := range strings.FieldsSeq(c.spec.args) {
		if !strings.HasPrefix(word, "[") {
			required = append(required, strings.TrimSuffix(word, "..."))
		}
	}
	if have < len(required) {
		return required[have]
	}
	return "an argument"
}

// complete fills in missing arguments from the first example.
func (c *command) complete(l line) line {
	if list := examples(c.Help()); len(list) > 0 {
		example := c.split(list[0][len(strings.Fields(c.spec.name)):])
		if len(example.args) > len(l.args) {
			l.args = append(l.args, example.args[len(l.args):]...)
		}
	}
	return l
}

// surplus returns the error for the first argument too many. It may be the value of a flag that
// takes one only after "="; otherwise the fix drops it.
func (c *command) surplus(words, args []string) error {
	fix := withArgs(args[:c.spec.max]...)
	for i := 1; i < len(words); i++ {
		name, _, hasValue := flagName(words[i-1])
		f, at := c.flags.Lookup(name), slices.Index(args, words[i])
		if f != nil && !hasValue && isBool(f) && at >= 0 && f.Value.Set(words[i]) == nil {
			fix = func(l line) line {
				l = withFlag(name, words[i])(l)
				return withArgs(slices.Delete(slices.Clone(args), at, at+1)...)(l)
			}
			break
		}
	}
	return usageErrorWithFix(fix, "unexpected argument %q", args[c.spec.max])
}

func (c *command) flagError(err error) error {
	if name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: "); unknown {
		return c.unknownFlag(strings.TrimPrefix(name, "-"))
	}
	text := err.Error()
	mentioned := strings.Fields(text[strings.LastIndex(text, " -")+1:])[0]
	// An error in one flag is fixed by leaving the flag out.
	return usageErrorWithFix(withoutFlags(strings.TrimRight(strings.TrimPrefix(mentioned, "-"), ":")), "%s", err)
}

func (c *command) usageLine() string {
	line := "Usage: leno " + c.spec.name
	if c.hasFlags() {
		line += " [options]"
	}
	if c.spec.args != "" {
		line += " " + c.spec.args
	}
	return line
}

func (c *command) hasFlags() bool {
	any := false
	c.flags.VisitAll(func(*flag.Flag) { any = true })
	return any
}

func (c *command) Synopsis() string { return c.spec.synopsis }

// Help returns the usage line, the text and the flags.
func (c *command) Help() string {
	var b strings.Builder
	b.WriteString(c.usageLine() + "\n")
	for line := range strings.SplitSeq(strings.TrimSpace(c.spec.help), "\n") {
		b.WriteString(strings.TrimRight("\n  "+line, " "))
	}
	own, common := c.options()
	if len(own) > 0 {
		b.WriteString("\n\nOptions:\n")
	}
	for _, f := range own {
		b.WriteString("\n  " + optionName(f) + "\n")
		for _, line := range wrap(optionText(f), width-6) {
			b.WriteString("      " + line + "\n")
		}
	}
	if len(common) > 0 {
		names := make([]string, len(common))
		for i, f := range common {
			names[i] = optionName(f)
		}
		if len(own) == 0 {
			b.WriteString("\n")
		}
		b.WriteString("\nCommon options, explained by leno -help:\n\n")
		for _, line := range wrap(strings.Join(names, " "), width-2) {
			b.WriteString("  " + line + "\n")
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// options returns the command's own flags, and those that it shares with all commands that call
// the agent.
func (c *command) options() (own, common []*flag.Flag) {
	shared := commonOptions(c.meta)
	c.flags.VisitAll(func(f *flag.Flag) {
		if s := shared.Lookup(f.Name); s != nil && s.Usage == f.Usage {
			common = append(common, f)
		} else {
			own = append(own, f)
		}
	})
	return own, common
}

// commonOptions returns the flags of every command that prints the agent's data.
func commonOptions(m Meta) *flag.FlagSet {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	newSession(m).flags(fs)
	return fs
}

// optionName returns a flag as it is written: "-address=ADDRESS", "-wait[=DURATION]".
func optionName(f *flag.Flag) string {
	value, _ := flag.UnquoteUsage(f)
	switch {
	case value != "" && isBool(f):
		return "-" + f.Name + "[=" + strings.ToUpper(value) + "]"
	case value != "":
		return "-" + f.Name + "=" + strings.ToUpper(value)
	}
	return "-" + f.Name
}

// optionText returns the meaning of a flag, with its default.
func optionText(f *flag.Flag) string {
	_, text := flag.UnquoteUsage(f)
	if slices.Contains([]string{"", "0", "false"}, f.DefValue) || strings.Contains(strings.ToLower(text), "default") {
		return text
	}
	return text + "; default " + f.DefValue
}

// AutocompleteFlags offers every flag.
func (c *command) AutocompleteFlags() complete.Flags {
	flags := complete.Flags{}
	c.flags.VisitAll(func(f *flag.Flag) {
		flags["-"+f.Name] = c.predictor(f)
	})
	maps.Copy(flags, c.spec.values)
	return flags
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// AutocompleteArgs offers what the spec predicts, or nothing.
func (c *command) AutocompleteArgs() complete.Predictor {
	if c.spec.predict == nil {
		return complete.PredictNothing
	}
	return c.spec.predict
}
