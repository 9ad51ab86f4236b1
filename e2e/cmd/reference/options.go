package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/lenonet/leno/agent/config"
)

// A setting is an option or a block of the configuration.
type setting struct {
	config.Setting
	text string // what it does, without Markdown; for an option without a text of its own, that of the one before it
}

// settings returns the table of the configuration.
func settings() (out []setting) {
	for _, s := range config.Reference() {
		o := setting{s, withoutMarkdown(s.Text)}
		if s.Text == "" && !s.IsBlock() {
			o.text = out[len(out)-1].text
		}
		out = append(out, o)
	}
	return out
}

// block returns the name of the block that contains the option, "" for none. A network is "network.*".
func (o setting) block() string {
	name := strings.TrimSuffix(o.Name, ".*")
	return name[:max(strings.LastIndexByte(name, '.'), 0)]
}

// last returns the option's own name.
func (o setting) last() string {
	name := strings.TrimSuffix(o.Name, ".*")
	return name[strings.LastIndexByte(name, '.')+1:]
}

// exampleValue returns the value that the example has.
func (o setting) exampleValue() string {
	return strings.Replace(cmp.Or(o.Example, o.Default), "*.", "default.", 1)
}

// isContinued reports whether the option is described together with the one before it.
func (o setting) isContinued() bool { return o.Text == "" && !o.IsBlock() }

// withRestart returns the text with what a change needs.
func (o setting) withRestart() string {
	if o.Restart == "" {
		return o.text
	}
	return strings.TrimSpace(o.text + " To change it, restart the agent.")
}

var (
	markdownLink = regexp.MustCompile(`\[([^\[\]` + "`" + `]+)\]\([^()]+\)`)
	code         = regexp.MustCompile("`[^`]*`")
)

// withoutMarkdown returns a text without links and marks of code. Punctuation is quoted instead.
func withoutMarkdown(text string) string {
	return code.ReplaceAllStringFunc(markdownLink.ReplaceAllString(text, "$1"), func(span string) string {
		content := strings.Trim(span, "`")
		if strings.ContainsFunc(content, func(r rune) bool { return r == '"' || unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			return content
		}
		return `"` + content + `"`
	})
}

// blockOptions returns the list of the options of one block.
func (s *source) blockOptions(block string) func() (string, error) {
	return func() (string, error) {
		var names, out []string
		for _, o := range s.options {
			name := strings.Replace(o.Name, "network.*.", "network.", 1)
			below, ok := strings.CutPrefix(name, block+".")
			if block == "" {
				below, ok = name, !strings.Contains(name, ".")
			}
			kind := o.Kind
			if standard := o.standard(); standard != "" {
				kind += ", " + standard
			}
			switch {
			case !ok || o.IsBlock() && below != "backend":
				continue
			case o.isContinued():
				names[len(names)-1] += ", `" + below + "`"
				continue
			case below == "backend":
				below, kind = `backend "TYPE" { }`, kind+", `"+config.DefaultBackend+"`"
			}
			names = append(names, "`"+below+"`")
			out = append(out, fmt.Sprintf(" (%s): %s\n", kind, o.Text))
		}
		var b strings.Builder
		for i, name := range names {
			b.WriteString("- " + name + out[i])
		}
		return b.String(), nil
	}
}

// standard returns the default in code, "" for none.
func (o setting) standard() string {
	if o.Default == `""` || o.Example != "" || o.IsBlock() {
		return ""
	}
	return "`" + strings.ReplaceAll(o.Default, "/*.", "/<network>.") + "`"
}

// restarts returns the list of the options that a reload cannot change, a line for each block.
func restarts() (string, error) {
	var out, groups []string
	for _, s := range config.Settings() {
		if s.Restart == "" {
			continue
		}
		block, _, ok := strings.Cut(s.Name, ".")
		if !ok {
			block = ""
		}
		if i := slices.Index(groups, block); i >= 0 {
			out[i] += ", `" + s.Name + "`"
			continue
		}
		groups, out = append(groups, block), append(out, "`"+s.Name+"`")
	}
	return "- " + strings.Join(out, "\n- ") + "\n", nil
}
