package command

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

// line is a command line after the command's name, split into flags and arguments.
type line struct{ flags, args []string }

// fix turns a rejected command line into the nearest valid one.
type fix func(line) line

// withFlag sets -name=value in place of the given value.
func withFlag(name, value string) fix {
	return func(l line) line {
		at := slices.IndexFunc(l.flags, func(w string) bool { n, _, _ := flagName(w); return n == name })
		l.flags = withoutFlag(l.flags, name)
		l.flags = slices.Insert(l.flags, max(at, 0), "-"+name+"="+value)
		return l
	}
}

// withArgs replaces the arguments.
func withArgs(args ...string) fix {
	return func(l line) line {
		l.args = args
		return l
	}
}

// withoutFlags removes flags.
func withoutFlags(names ...string) fix {
	return func(l line) line {
		for _, name := range names {
			l.flags = withoutFlag(l.flags, name)
		}
		return l
	}
}

// wrongValue returns the error for a flag value that is not allowed. Its fix uses the most similar
// allowed value, or the first one.
func wrongValue(name, value, text string, of ...string) error {
	near := nearest(strings.ToLower(value), of)
	if near == "" {
		near = of[0]
	} else {
		text += didYouMean(strings.ToLower(value), of)
	}
	return instead(withFlag(name, near), "%s", text)
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

// withoutFlag returns the words without a flag and its value.
func withoutFlag(words []string, name string) []string {
	var out []string
	for i := 0; i < len(words); i++ {
		word, _, hasValue := flagName(words[i])
		switch {
		case word != name:
			out = append(out, words[i])
		case !hasValue && i+1 < len(words) && !strings.HasPrefix(words[i+1], "-"):
			i++
		}
	}
	return out
}

// secretFlags are the flags whose values are never shown.
var secretFlags = []string{"token", "consul-token"}

// shown returns a command line in shell syntax, without secrets.
func shown(words []string) string {
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
		out = append(out, quoted(words[i]))
	}
	return strings.Join(out, " ")
}

// quoted returns a word in shell syntax.
func quoted(word string) string {
	if word != "" && strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=./:,@%+[]") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(printable(word), "'", `'\''`) + "'"
}

// correct returns the valid command line nearest to words. It replaces mistyped commands, flags
// and values by similar ones, drops surplus ones, and takes missing ones from the first example of
// the command.
func correct(m Meta, words []string) []string {
	commands := Commands(m)
	for range 8 { // one mistake per round
		name, rest := resolve(commands, words)
		if name == "" {
			return []string{"-help"}
		}
		c, ok := leaf(commands, name)
		if !ok {
			return firstExample(commands, name)
		}
		_, err := c.parse(rest)
		if err == nil {
			err = c.checkFormat()
		}
		var usage *usageError
		if !errors.As(err, &usage) {
			return append(strings.Fields(name), rest...)
		}
		next := c.mended(usage, rest)
		if next == nil || slices.Equal(next, rest) {
			return firstExample(commands, name)
		}
		words = append(strings.Fields(name), next...)
	}
	return []string{"-help"}
}

// checkFormat returns an error for a -format that the command does not have.
func (c *command) checkFormat() error {
	f := c.flags.Lookup("format")
	if f == nil || f.Value.String() == "" {
		return nil
	}
	of := c.AutocompleteFlags()["-format"].Predict(complete.Args{})
	if slices.Contains(of, f.Value.String()) {
		return nil
	}
	return wrongValue("format", f.Value.String(), "-format", of...)
}

// mended applies the fix of an error; nil if it has none.
func (c *command) mended(err *usageError, words []string) []string {
	switch {
	case err.words != nil:
		return err.words
	case err.fix != nil:
		l := err.fix(c.split(words))
		return append(slices.Clone(l.args), l.flags...)
	}
	return nil
}

// split separates flags from arguments, as parse does.
func (c *command) split(words []string) line {
	var l line
	for i := 0; i < len(words); i++ {
		name, _, hasValue := flagName(words[i])
		f := c.flags.Lookup(name)
		switch {
		case words[i] == "--":
			l.args = append(l.args, words[i+1:]...)
			return l
		case name == "":
			l.args = append(l.args, words[i])
		case f != nil && !hasValue && !isBool(f) && i+1 < len(words):
			l.flags = append(l.flags, words[i], words[i+1])
			i++
		default:
			l.flags = append(l.flags, words[i])
		}
	}
	return l
}

// unknownFlag returns the error for a flag that the command does not have.
func (c *command) unknownFlag(words []string, name string) *usageError {
	var names []string
	c.flags.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	near := nearest(name, names)
	hint := ""
	if near != "" {
		hint = "; did you mean -" + near + "?"
	}
	i := slices.IndexFunc(words, func(w string) bool { n, _, _ := flagName(w); return n == name })
	if i < 0 {
		return &usageError{text: "unknown flag -" + name + hint}
	}
	_, value, hasValue := flagName(words[i])
	mended := slices.Clone(words)
	switch {
	case near != "" && hasValue:
		mended[i] = "-" + near + "=" + value
	case near != "":
		mended[i] = "-" + near
	case slices.Contains(c.argNames(), strings.ToUpper(name)): // an argument given as a flag
		hint = "; " + strings.ToUpper(name) + " is an argument, not a flag"
		mended = slices.Delete(mended, i, i+1)
		if hasValue {
			mended = slices.Insert(mended, 0, value)
		}
	default:
		mended = slices.Delete(mended, i, i+1)
	}
	return &usageError{text: "unknown flag -" + name + hint, words: mended}
}

// argNames returns the names of the arguments: NETWORK, SUBNET.
func (c *command) argNames() []string {
	var names []string
	for word := range strings.FieldsSeq(c.spec.args) {
		names = append(names, strings.TrimSuffix(strings.Trim(word, "[]"), "..."))
	}
	return names
}

// meantBy returns the network or subnet most similar to an argument, of those that the agent lists
// in a "not found" error; "" for none.
func meantBy(err error, args []string) string {
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
		if near := nearest(a, known); near != "" {
			return near
		}
	}
	return ""
}
