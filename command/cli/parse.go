package cli

import (
	"flag"
	"slices"
	"strings"
)

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
	empty := c.emptyFlag()
	switch {
	case empty != "":
		return nil, UsageErrorf("-%s is empty", empty)
	case len(rest) < c.Spec.Min:
		return nil, UsageErrorf("%s is missing", c.missingArg(len(rest)))
	case c.Spec.Max >= 0 && len(rest) > c.Spec.Max:
		return nil, UsageErrorf("unexpected argument %q", rest[c.Spec.Max])
	}
	return rest, nil
}

// emptyFlag returns the name of a flag that was given without text, "" if there is none. Text from an unset variable
// must not mean the same as no flag. Common flags, and those of settings, which are no flag.Getter, may be empty, to
// override the environment.
func (c *Command) emptyFlag() string {
	own, _ := c.Options()
	for _, f := range own {
		if text, ok := f.Value.(flag.Getter); ok && text.Get() == "" && IsGiven(c.Flags, f.Name) {
			return f.Name
		}
	}
	return ""
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

func (c *Command) flagError(err error) error {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		// The package says so of every flag that needs no value, also of those that take more than true and false.
		rest, isBool := strings.CutPrefix(err.Error(), "invalid boolean value")
		if isBool && !strings.HasSuffix(rest, "parse error") {
			return UsageErrorf("invalid value%s", rest)
		}
		return UsageErrorf("%s", err)
	}
	text := "unknown flag -" + name
	if slices.Contains(c.argNames(), strings.ToUpper(name)) {
		text += "; " + strings.ToUpper(name) + " is an argument, not a flag"
	}
	var flags []string
	c.Flags.VisitAll(func(f *flag.Flag) { flags = append(flags, "-"+f.Name) })
	return UsageErrorf("%s%s", text, didYouMean("-"+name, flags))
}

// argNames returns the names of the arguments, for example NETWORK and SUBNET.
func (c *Command) argNames() []string {
	var names []string
	for word := range strings.FieldsSeq(c.Spec.Args) {
		names = append(names, strings.TrimSuffix(strings.Trim(word, "[]"), "..."))
	}
	return names
}
