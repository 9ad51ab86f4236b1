package cli

import (
	"errors"
	"flag"
	"net/http"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/posener/complete"

	"github.com/lenonet/leno/api"
)

// split separates flags from arguments, as parse does, and takes an unknown flag for the most
// similar one.
func (c *Command) split(words []string) line {
	var l line
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

// applyFix returns the fixed command line, flags last.
func (c *Command) applyFix(f Fix, words []string) []string {
	l := f(c.split(words))
	fixed := slices.Clone(l.args)
	for _, f := range l.flags {
		fixed = append(fixed, f.String())
	}
	return fixed
}

// correct returns the valid command line nearest to words. It replaces mistyped commands, flags
// and values by similar ones, drops surplus ones, and takes missing ones from the first example of
// the command.
func (all Commands) correct(words []string) []string {
	for range 8 { // one mistake per round
		name, rest := all.Resolve(words)
		if name == "" {
			return []string{"-help"}
		}
		c, ok := all.Leaf(name)
		if !ok {
			return all.firstExample(name)
		}
		_, err := c.Parse(rest)
		if err == nil {
			err = c.checkFormat()
		}
		var usage *usageError
		if !errors.As(err, &usage) {
			return append(strings.Fields(name), rest...)
		}
		if usage.fix == nil {
			return all.firstExample(name)
		}
		fixed := c.applyFix(usage.fix, rest)
		if slices.Equal(fixed, rest) {
			return all.firstExample(name)
		}
		words = append(strings.Fields(name), fixed...)
	}
	return []string{"-help"}
}

// checkFormat returns an error for a -format that the command does not have.
func (c *Command) checkFormat() error {
	f := c.Flags.Lookup("format")
	if f == nil || f.Value.String() == "" {
		return nil
	}
	allowed := c.AutocompleteFlags()["-format"].Predict(complete.Args{})
	if slices.Contains(allowed, f.Value.String()) {
		return nil
	}
	return WrongValue("format", f.Value.String(), "-format", allowed...)
}

// unknownFlag returns the error for a flag that the command does not have.
func (c *Command) unknownFlag(name string) error {
	text := "unknown flag -" + name
	if near := nearestName(name, c.flagNames()); near != "" {
		// split has already replaced it.
		return UsageErrorWithFix(func(l line) line { return l }, "%s; did you mean -%s?", text, near)
	}
	if !slices.Contains(c.argNames(), strings.ToUpper(name)) {
		return UsageErrorWithFix(DropFlags(name), "%s", text)
	}
	return UsageErrorWithFix(func(l line) line {
		for _, f := range l.flags {
			if f.name == name && f.hasValue {
				l = insertArg(f.value)(l)
			}
		}
		return DropFlags(name)(l)
	}, "%s; %s is an argument, not a flag", text, strings.ToUpper(name))
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

// suggestion returns the network or subnet most similar to an argument, of those that the agent
// lists in a "not found" error; "" for none.
func suggestion(err error, args []string) string {
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != http.StatusNotFound {
		return ""
	}
	_, list, found := strings.Cut(refused.Message, "known are ")
	if !found {
		return ""
	}
	list, _, _ = strings.Cut(list, " and ")
	known := strings.Split(list, ", ")
	for _, a := range args {
		if slices.Contains(known, a) {
			continue
		}
		if p, ok := parseSubnet(a); ok {
			for _, k := range known {
				if other, ok := parseSubnet(k); ok && (p.Overlaps(other) || levenshtein.Distance(a, k, nil) == 1) {
					return k
				}
			}
			continue // two different digits make another subnet
		}
		if near := nearestName(a, known); near != "" {
			return near
		}
	}
	return ""
}
