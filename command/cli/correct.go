package cli

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/posener/complete"

	"github.com/lenonet/leno/api"
)

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

// correction returns the valid command line nearest to a wrong one, or an example.
func (c *Command) correction(err *usageError, words []string) []string {
	if err.fix == nil {
		return c.all.firstExample(c.Spec.Name)
	}
	return c.all.correct(append(strings.Fields(c.Spec.Name), c.applyFix(err.fix, words)...))
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
