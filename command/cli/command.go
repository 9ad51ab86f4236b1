package cli

import (
	"context"
	"flag"
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
	Spec  Spec
	Flags *flag.FlagSet
}

var (
	_ hashicorp.Command             = (*Command)(nil)
	_ hashicorp.CommandAutocomplete = (*Command)(nil)
)

func newCommand(m Meta, s Spec) *Command {
	c := &Command{meta: m, Spec: s, Flags: flag.NewFlagSet(s.Name, flag.ContinueOnError)}
	c.Flags.SetOutput(io.Discard)
	c.Flags.Usage = func() {}
	if s.Flags != nil {
		s.Flags(c.Flags)
	}
	return c
}

// Leaf returns a new command of that name, false for a group.
func (all Commands) Leaf(name string) (*Command, bool) {
	if all[name] == nil {
		return nil, false
	}
	c, err := all[name]()
	if err != nil {
		return nil, false
	}
	out, ok := c.(*Command)
	return out, ok
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
		flags["-"+f.Name] = predictFlag(c.meta, f)
	})
	maps.Copy(flags, c.Spec.Values)
	return flags
}

// AutocompleteArgs offers what the Spec predicts, or nothing.
func (c *Command) AutocompleteArgs() complete.Predictor {
	if c.Spec.Predict == nil {
		return complete.PredictNothing
	}
	return c.Spec.Predict
}
