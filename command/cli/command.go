package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	hashicorp "github.com/hashicorp/cli"
	"github.com/posener/complete"
)

// Spec describes one command. A constructor returns it with flags bound to its own variables, so
// each spec is used only once.
type Spec struct {
	Name     string // for example "lease show"
	Args     string // for the usage line, for example "[NETWORK] SUBNET"
	Min, Max int    // number of arguments; max -1 for any number
	Synopsis string // part of a line, for the list of commands
	Help     string // paragraphs, wrapped at 78 columns, and examples: lines "  $ leno …", the simplest first

	Flags   func(*flag.FlagSet) // declares the flags; nil for none
	Predict complete.Predictor  // completes arguments; nil for none
	Values  complete.Flags      // completes the values of flags whose names do not show what they take
	Run     func(ctx context.Context, args []string) error
}

// Command adapts a Spec to hashicorp.Command.
type Command struct {
	meta  Meta
	all   Commands // of the program
	Spec  Spec
	Flags *flag.FlagSet
}

var (
	_ hashicorp.Command             = (*Command)(nil)
	_ hashicorp.CommandAutocomplete = (*Command)(nil)
)

func newCommand(m Meta, all Commands, s Spec) *Command {
	c := &Command{meta: m, all: all, Spec: s, Flags: flag.NewFlagSet(s.Name, flag.ContinueOnError)}
	c.Flags.SetOutput(io.Discard)
	c.Flags.Usage = func() {}
	if s.Flags != nil {
		s.Flags(c.Flags)
	}
	return c
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
	if similar := suggestion(err, args); similar != "" {
		err = fmt.Errorf("%w; did you mean %s?", err, similar)
	}
	var usage *usageError
	var unusable *unusableConfig
	switch {
	case err == nil:
		return ExitDone
	case errors.Is(err, ErrReported):
		return ExitFailed
	case errors.As(err, &usage):
		fmt.Fprintf(c.meta.Stderr, "%s\nTry:   %s\n%s\nFor more, leno %s -help\n", c.meta.errorText(usage.text),
			shellSyntax(c.correction(usage, words)), c.UsageLine(), c.Spec.Name)
		return ExitUsage
	case errors.As(err, &unusable):
		c.meta.WriteError(err)
		return ExitConfig
	}
	c.meta.WriteError(err)
	return ExitFailed
}

// correction returns the valid command line nearest to a wrong one, or an example.
func (c *Command) correction(err *usageError, words []string) []string {
	if err.fix == nil {
		return c.all.firstExample(c.Spec.Name)
	}
	return c.all.correct(append(strings.Fields(c.Spec.Name), c.applyFix(err.fix, words)...))
}

// Parse accepts flags before, between and after the arguments; "--" ends them.
func (c *Command) Parse(words []string) ([]string, error) {
	var rest []string
	for args := words; len(args) > 0; {
		if err := c.Flags.Parse(args); err != nil {
			return nil, c.flagError(err)
		}
		left := c.Flags.Args()
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
	case len(rest) < c.Spec.Min:
		return nil, UsageErrorWithFix(c.complete, "%s is missing", c.missingArg(len(rest)))
	case c.Spec.Max >= 0 && len(rest) > c.Spec.Max:
		return nil, c.surplusError(words, rest)
	}
	return rest, nil
}

// missingArg returns the name of the first missing required argument.
func (c *Command) missingArg(have int) string {
	var required []string
	for word := range strings.FieldsSeq(c.Spec.Args) {
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
func (c *Command) complete(l line) line {
	if list := Examples(c.Help()); len(list) > 0 {
		example := c.split(list[0][len(strings.Fields(c.Spec.Name)):])
		if len(example.args) > len(l.args) {
			l.args = append(l.args, example.args[len(l.args):]...)
		}
	}
	return l
}

// surplusError returns the error for the first argument too many. It may be the value of a flag that
// takes one only after "="; otherwise the fix drops it.
func (c *Command) surplusError(words, args []string) error {
	fix := SetArgs(args[:c.Spec.Max]...)
	for i := 1; i < len(words); i++ {
		name, _, hasValue := flagName(words[i-1])
		f, at := c.Flags.Lookup(name), slices.Index(args, words[i])
		if f != nil && !hasValue && IsBool(f) && at >= 0 && f.Value.Set(words[i]) == nil {
			fix = func(l line) line {
				l = SetFlag(name, words[i])(l)
				return SetArgs(slices.Delete(slices.Clone(args), at, at+1)...)(l)
			}
			break
		}
	}
	return UsageErrorWithFix(fix, "unexpected argument %q", args[c.Spec.Max])
}

func (c *Command) flagError(err error) error {
	if name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: "); unknown {
		return c.unknownFlag(strings.TrimPrefix(name, "-"))
	}
	text := err.Error()
	mentioned := strings.Fields(text[strings.LastIndex(text, " -")+1:])[0]
	// An error in one flag is fixed by leaving the flag out.
	return UsageErrorWithFix(DropFlags(strings.TrimRight(strings.TrimPrefix(mentioned, "-"), ":")), "%s", err)
}

// UsageLine returns the line with the command's arguments.
func (c *Command) UsageLine() string {
	line := "Usage: leno " + c.Spec.Name
	if c.hasFlags() {
		line += " [options]"
	}
	if c.Spec.Args != "" {
		line += " " + c.Spec.Args
	}
	return line
}

func (c *Command) hasFlags() bool {
	any := false
	c.Flags.VisitAll(func(*flag.Flag) { any = true })
	return any
}

// Synopsis returns the line for the list of commands.
func (c *Command) Synopsis() string { return c.Spec.Synopsis }

// Help returns the usage line, the text and the flags.
func (c *Command) Help() string {
	var b strings.Builder
	b.WriteString(c.UsageLine() + "\n")
	for line := range strings.SplitSeq(strings.TrimSpace(c.Spec.Help), "\n") {
		b.WriteString(strings.TrimRight("\n  "+line, " "))
	}
	own, common := c.Options()
	if len(own) > 0 {
		b.WriteString("\n\nOptions:\n")
	}
	for _, f := range own {
		b.WriteString("\n  " + OptionName(f) + "\n")
		for _, line := range Wrap(optionText(f), Width-6) {
			b.WriteString("      " + line + "\n")
		}
	}
	if len(common) > 0 {
		names := make([]string, len(common))
		for i, f := range common {
			names[i] = OptionName(f)
		}
		if len(own) == 0 {
			b.WriteString("\n")
		}
		b.WriteString("\nCommon options, explained by leno -help:\n\n")
		for _, line := range Wrap(strings.Join(names, " "), Width-2) {
			b.WriteString("  " + line + "\n")
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// Options returns the command's own flags, and those that it shares with all commands that call
// the agent.
func (c *Command) Options() (own, common []*flag.Flag) {
	shared := commonOptions(c.meta)
	c.Flags.VisitAll(func(f *flag.Flag) {
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
	NewSession(m).Register(fs)
	return fs
}

// OptionName returns a flag as it is written: "-address=ADDRESS", "-wait[=DURATION]".
func OptionName(f *flag.Flag) string {
	value, _ := flag.UnquoteUsage(f)
	switch {
	case value != "" && IsBool(f):
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
func (c *Command) AutocompleteFlags() complete.Flags {
	flags := complete.Flags{}
	c.Flags.VisitAll(func(f *flag.Flag) {
		flags["-"+f.Name] = c.predictor(f)
	})
	maps.Copy(flags, c.Spec.Values)
	return flags
}

// IsBool reports whether a flag needs no value.
func IsBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// AutocompleteArgs offers what the Spec predicts, or nothing.
func (c *Command) AutocompleteArgs() complete.Predictor {
	if c.Spec.Predict == nil {
		return complete.PredictNothing
	}
	return c.Spec.Predict
}
