package main

import (
	"fmt"
	"strings"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/agent/config"
)

const exampleFile = "config.hcl.example"

const exampleIntro = "leno agent configuration: every option, its meaning and its default.\n" +
	"\n" +
	"Only a network is required: a minimal file is a block \"network\" with its prefix. All values here are the " +
	"defaults, except in the blocks network and login. Blocks in comments are optional. Check a file with " +
	"`leno validate FILE`, and format it with `leno fmt FILE`. The agent reads any number of files and directories " +
	"(-config-file, -config-dir). If several files set an option, the last one wins. A network must be defined in " +
	"one place only. Durations have a unit: \"90s\", \"2m\", \"1h30m\"."

// exampleConfig returns config.hcl.example.
func (s *source) exampleConfig() (string, error) {
	var e exampleWriter
	for i, paragraph := range strings.Split(exampleIntro, "\n\n") {
		if i > 0 {
			e.line("#")
		}
		e.comment(paragraph)
	}
	e.line("")
	s.exampleBlock(&e, "")
	out, err := config.Format([]byte(e.String()), exampleFile)
	return string(out), err
}

// exampleBlock writes the content of a block, or of the file.
func (s *source) exampleBlock(e *exampleWriter, path string) {
	first := true
	for i, o := range s.options {
		if o.block() != path {
			continue
		}
		if !first && !o.isContinued() {
			e.line("")
		}
		first = false
		switch {
		case o.last() == "backend":
			e.comment(o.text)
			s.exampleBackend(e)
		case o.IsBlock():
			e.comment(o.text)
			outer := e.prefix
			if o.Optional {
				e.prefix += "# "
			}
			e.line("%s {", strings.Replace(o.last(), "network", `network "default"`, 1))
			inner := e.prefix
			e.prefix += "  "
			s.exampleBlock(e, o.Name)
			e.prefix = inner
			e.line("}")
			e.prefix = outer
		default:
			if !o.isContinued() {
				e.comment(o.text)
			}
			e.line("%-*s = %s", s.width(i), o.last(), o.exampleValue())
		}
	}
}

// width returns the length of the longest name among the options that are described together with the one at i.
func (s *source) width(i int) int {
	for i > 0 && s.options[i].isContinued() {
		i--
	}
	width := len(s.options[i].last())
	for _, o := range s.options[i+1:] {
		if !o.isContinued() {
			break
		}
		width = max(width, len(o.last()))
	}
	return width
}

// exampleBackend writes a block of the default backend.
func (s *source) exampleBackend(e *exampleWriter) {
	const name = config.DefaultBackend
	e.line("backend %q {", name)
	e.prefix += "  "
	for i, o := range backendOptions(agent.Backends()[name].Normalize) {
		if i > 0 {
			e.line("")
		}
		e.comment(s.backendTexts[name][o.name])
		e.line("%s = %s", o.name, o.standard)
	}
	e.prefix = strings.TrimSuffix(e.prefix, "  ")
	e.line("}")
}

// An exampleWriter writes lines with a prefix: spaces, and the mark of a block in a comment.
type exampleWriter struct {
	strings.Builder
	prefix string
}

func (e *exampleWriter) line(format string, args ...any) {
	e.WriteString(strings.TrimRight(e.prefix+fmt.Sprintf(format, args...), " ") + "\n")
}

// comment writes a text in lines of at most 90 characters.
func (e *exampleWriter) comment(text string) {
	const width = 90
	line := "#"
	for word := range strings.FieldsSeq(text) {
		if len(e.prefix)+len(line)+1+len(word) > width {
			e.line("%s", line)
			line = "#"
		}
		line += " " + word
	}
	if line != "#" {
		e.line("%s", line)
	}
}
