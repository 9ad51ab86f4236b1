package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/hashicorp/cli"
	"github.com/posener/complete"

	"github.com/lenonet/leno/agent/config"
)

// errReported ends a command with exit code 1 when everything there is to say
// has been printed.
var errReported = errors.New("reported")

// usageError is a mistake on the command line, exit code 2.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// configError is a configuration that an agent cannot start with, exit code 78: to
// start it again mends nothing.
type configError struct{ error }

func (e *configError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// spec is what tells one command from another. A constructor returns it with
// flags bound to variables of its own, so that every spec is used once.
type spec struct {
	name     string // "lease show"
	args     string // "[NETWORK] SUBNET", for the usage line
	min, max int    // number of arguments; max -1 for any number
	synopsis string // part of a line, for the list of commands
	help     string // paragraphs, wrapped at 78 columns

	flags   func(*flag.FlagSet) // declares the flags; nil for none
	predict complete.Predictor  // of arguments; nil for none
	values  complete.Flags      // of flags whose names do not tell what they take
	run     func(ctx context.Context, args []string) error
}

// command makes a spec a cli.Command.
type command struct {
	meta  Meta
	spec  spec
	flags *flag.FlagSet
}

var (
	_ cli.Command             = (*command)(nil)
	_ cli.CommandAutocomplete = (*command)(nil)
)

func newCommand(m Meta, s spec) *command {
	c := &command{meta: m, spec: s, flags: flag.NewFlagSet(s.name, flag.ContinueOnError)}
	c.flags.SetOutput(io.Discard)
	c.flags.Usage = func() {}
	if s.flags != nil {
		s.flags(c.flags)
	}
	return c
}

// Run parses and runs and turns the error into text and an exit code.
func (c *command) Run(args []string) int {
	args, err := c.parse(args)
	if err == nil {
		err = c.spec.run(context.Background(), args)
	}
	var usage *usageError
	var unusable *configError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errReported):
		return exitFailed
	case errors.As(err, &usage):
		fmt.Fprintf(c.meta.Stderr, "Error: %s\n\n%s\nFor more, leno %s -help\n", printable(usage.text), c.usageLine(), c.spec.name)
		return exitUsage
	case errors.As(err, &unusable):
		writeError(c.meta.Stderr, err)
		return exitConfig
	}
	writeError(c.meta.Stderr, err)
	return exitFailed
}

// writeError prints why a command failed.
func writeError(w io.Writer, err error) {
	var files *config.Errors
	if errors.As(err, &files) {
		writeConfigErrors(w, files)
		return
	}
	fmt.Fprintf(w, "Error: %s\n", printable(err.Error()))
}

// parse takes flags before, between and after the arguments; "--" ends them.
func (c *command) parse(args []string) ([]string, error) {
	var rest []string
	for len(args) > 0 {
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
		return nil, usagef("%s is missing", c.missing(len(rest)))
	case c.spec.max >= 0 && len(rest) > c.spec.max:
		return nil, usagef("unexpected argument %q", rest[c.spec.max])
	}
	return rest, nil
}

// missing names the first required argument that is not there.
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

func (c *command) flagError(err error) error {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: ")
	if !unknown {
		return usagef("%s", err)
	}
	var names []string
	c.flags.VisitAll(func(f *flag.Flag) { names = append(names, "-"+f.Name) })
	return usagef("unknown flag %s%s", name, didYouMean(name, names))
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

// Help is the usage line, the text and the flags.
func (c *command) Help() string {
	var b strings.Builder
	b.WriteString(c.usageLine() + "\n")
	for line := range strings.SplitSeq(strings.TrimSpace(c.spec.help), "\n") {
		b.WriteString(strings.TrimRight("\n  "+line, " "))
	}
	if c.hasFlags() {
		b.WriteString("\n\nOptions:\n")
		c.flags.VisitAll(func(f *flag.Flag) {
			value, text := flag.UnquoteUsage(f)
			if value != "" {
				value = "=" + strings.ToUpper(value)
			}
			fmt.Fprintf(&b, "\n  -%s%s\n", f.Name, value)
			for _, line := range wrap(text, width-6) {
				b.WriteString("      " + line + "\n")
			}
		})
	}
	return strings.TrimRight(b.String(), "\n")
}

// AutocompleteFlags offers every flag.
func (c *command) AutocompleteFlags() complete.Flags {
	flags := complete.Flags{}
	c.flags.VisitAll(func(f *flag.Flag) {
		switch {
		case f.Name == "format":
			flags["-"+f.Name] = complete.PredictSet(formatTable, formatJSON)
		case strings.HasSuffix(f.Name, "-file") || strings.HasSuffix(f.Name, "-cert") || strings.HasSuffix(f.Name, "-key"):
			flags["-"+f.Name] = complete.PredictFiles("*")
		case strings.HasSuffix(f.Name, "-dir"):
			flags["-"+f.Name] = complete.PredictDirs("*")
		case isBool(f):
			flags["-"+f.Name] = complete.PredictNothing
		default:
			flags["-"+f.Name] = complete.PredictAnything
		}
	})
	maps.Copy(flags, c.spec.values)
	return flags
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// AutocompleteArgs offers what the command says, or nothing.
func (c *command) AutocompleteArgs() complete.Predictor {
	if c.spec.predict == nil {
		return complete.PredictNothing
	}
	return c.spec.predict
}
