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
func (c *Command) complete(l commandLine) commandLine {
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
			fix = func(l commandLine) commandLine {
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

// unknownFlag returns the error for a flag that the command does not have.
func (c *Command) unknownFlag(name string) error {
	text := "unknown flag -" + name
	if near := nearestName(name, c.flagNames()); near != "" {
		// split has already replaced it.
		return UsageErrorWithFix(func(l commandLine) commandLine { return l }, "%s; did you mean -%s?", text, near)
	}
	if !slices.Contains(c.argNames(), strings.ToUpper(name)) {
		return UsageErrorWithFix(DropFlags(name), "%s", text)
	}
	return UsageErrorWithFix(func(l commandLine) commandLine {
		for _, f := range l.flags {
			if f.name == name && f.hasValue {
				l = insertArg(f.value)(l)
			}
		}
		return DropFlags(name)(l)
	}, "%s; %s is an argument, not a flag", text, strings.ToUpper(name))
}

// split separates flags from arguments, as parse does, and takes an unknown flag for the most
// similar one.
func (c *Command) split(words []string) commandLine {
	var l commandLine
	for i := 0; i < len(words); i++ {
		name, value, hasValue := flagName(words[i])
		if words[i] == "--" {
			l.args = append(l.args, words[i+1:]...)
			return l
		}
		if name == "" {
			l.args = append(l.args, words[i])
			continue
		}
		f := c.Flags.Lookup(name)
		if f == nil {
			f = c.Flags.Lookup(nearestName(name, c.flagNames()))
		}
		if f != nil {
			name = f.Name
			if !hasValue && !IsBool(f) && i+1 < len(words) {
				i++
				value, hasValue = words[i], true
			}
		}
		l.flags = append(l.flags, givenFlag{name, value, hasValue})
	}
	return l
}

func (c *Command) flagNames() (names []string) {
	c.Flags.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	return names
}

// argNames returns the names of the arguments, for example NETWORK and SUBNET.
func (c *Command) argNames() []string {
	var names []string
	for word := range strings.FieldsSeq(c.Spec.Args) {
		names = append(names, strings.TrimSuffix(strings.Trim(word, "[]"), "..."))
	}
	return names
}
