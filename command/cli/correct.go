package cli

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/posener/complete"

	"github.com/lenonet/leno/api"
)

// line is a command line after the command's name.
type line struct {
	flags []givenFlag
	args  []string
}

// givenFlag is a flag on a command line.
type givenFlag struct {
	name, value string
	hasValue    bool
}

func (f givenFlag) String() string {
	if f.hasValue {
		return "-" + f.name + "=" + f.value
	}
	return "-" + f.name
}

// A Fix turns a rejected command line into the nearest valid one.
type Fix func(line) line

// SetFlag sets -name=value in place of the given value.
func SetFlag(name, value string) Fix {
	return func(l line) line {
		at := slices.IndexFunc(l.flags, func(f givenFlag) bool { return f.name == name })
		l = DropFlags(name)(l)
		l.flags = slices.Insert(l.flags, max(at, 0), givenFlag{name, value, true})
		return l
	}
}

// AddFlag adds -name.
func AddFlag(name string) Fix {
	return func(l line) line {
		l.flags = append(l.flags, givenFlag{name: name})
		return l
	}
}

// DropFlags removes flags.
func DropFlags(names ...string) Fix {
	return func(l line) line {
		l.flags = slices.DeleteFunc(l.flags, func(f givenFlag) bool { return slices.Contains(names, f.name) })
		return l
	}
}

// SetArgs replaces the arguments.
func SetArgs(args ...string) Fix {
	return func(l line) line {
		l.args = args
		return l
	}
}

// insertArg inserts an argument before the others.
func insertArg(arg string) Fix {
	return func(l line) line {
		l.args = slices.Insert(l.args, 0, arg)
		return l
	}
}

// WrongValue returns the error for a flag value that is not allowed. Its fix uses the most similar
// allowed value, or the first one.
func WrongValue(name, value, text string, allowed ...string) error {
	near := nearestName(strings.ToLower(value), allowed)
	if near == "" {
		near = allowed[0]
	} else {
		text += didYouMean(strings.ToLower(value), allowed)
	}
	return UsageErrorWithFix(SetFlag(name, near), "%s", text)
}

// flagName returns the name and value in "-name", "--name" and "-name=value"; "" if the word is
// not a flag.
func flagName(word string) (name, value string, hasValue bool) {
	trimmed := strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-")
	if trimmed == word || trimmed == "" {
		return "", "", false
	}
	return strings.Cut(trimmed, "=")
}

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

// didYouMean returns "; did you mean X?" for the most similar name, or "" if none is similar.
func didYouMean(word string, names []string) string {
	if near := nearestName(word, names); near != "" {
		return fmt.Sprintf("; did you mean %s?", Escape(near))
	}
	return ""
}

// nearestName returns the name most similar to word: at most two typing mistakes away, or the only one
// that word is a prefix of. It returns "" for none.
func nearestName(word string, names []string) string {
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

// secretFlags are the flags whose values are never shown.
var secretFlags = []string{"token", "consul-token"}

// shellSyntax returns a command line as a user would type it, without secrets.
func shellSyntax(words []string) string {
	out := []string{"leno"}
	for i := 0; i < len(words); i++ {
		name, _, hasValue := flagName(words[i])
		if slices.Contains(secretFlags, name) {
			if !hasValue {
				i++
			}
			out = append(out, "-"+name+"=TOKEN")
			continue
		}
		out = append(out, quote(words[i]))
	}
	return strings.Join(out, " ")
}

// quote returns a word in shell syntax.
func quote(word string) string {
	if word != "" && strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=./:,@%+[]") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(Escape(word), "'", `'\''`) + "'"
}
