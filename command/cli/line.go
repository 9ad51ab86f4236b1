package cli

import (
	"slices"
	"strings"
)

// commandLine is a command line after the command's name.
type commandLine struct {
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
type Fix func(commandLine) commandLine

// SetFlag sets -name=value in place of the given value.
func SetFlag(name, value string) Fix {
	return func(l commandLine) commandLine {
		at := slices.IndexFunc(l.flags, func(f givenFlag) bool { return f.name == name })
		l = DropFlags(name)(l)
		l.flags = slices.Insert(l.flags, max(at, 0), givenFlag{name, value, true})
		return l
	}
}

// AddFlag adds -name.
func AddFlag(name string) Fix {
	return func(l commandLine) commandLine {
		l.flags = append(l.flags, givenFlag{name: name})
		return l
	}
}

// DropFlags removes flags.
func DropFlags(names ...string) Fix {
	return func(l commandLine) commandLine {
		l.flags = slices.DeleteFunc(l.flags, func(f givenFlag) bool { return slices.Contains(names, f.name) })
		return l
	}
}

// SetArgs replaces the arguments.
func SetArgs(args ...string) Fix {
	return func(l commandLine) commandLine {
		l.args = args
		return l
	}
}

// insertArg inserts an argument before the others.
func insertArg(arg string) Fix {
	return func(l commandLine) commandLine {
		l.args = slices.Insert(l.args, 0, arg)
		return l
	}
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
