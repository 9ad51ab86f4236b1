package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/lenonet/leno/command"
	"github.com/lenonet/leno/command/cli"
)

// source holds what the reference is generated from.
type source struct {
	root     string // of the module
	version  string
	date     time.Time
	commands cli.Commands
	options  []setting
	api      *openapi3.T
	intro    string // packaging/leno.1

	backendTexts map[string]map[string]string // by backend and option, what the page of the backends says, without Markdown
}

func (s *source) read() error {
	s.commands = command.Commands(cli.Meta{Getenv: func(string) string { return "" }})
	s.options = settings()
	var err error
	if s.backendTexts, err = s.readBackendTexts(); err != nil {
		return err
	}
	if s.api, err = readAPI(); err != nil {
		return fmt.Errorf("api/openapi.yaml: %w", err)
	}
	s.intro, err = s.file("packaging/leno.1")
	return err
}

// file returns the content of a file of the module.
func (s *source) file(path string) (string, error) {
	text, err := os.ReadFile(filepath.Join(s.root, path))
	return string(text), err
}

const introTitle = `.TH LENO 1 "" leno "leno manual"`

// pages returns every manual page by file name: leno.1, leno.hcl.5, and one for each command, such as
// leno-lease-list.8.
func (s *source) pages() (map[string]string, error) {
	if !strings.HasPrefix(s.intro, introTitle+"\n") {
		return nil, errors.New("packaging/leno.1 does not begin with " + introTitle)
	}
	out := map[string]string{"leno.hcl.5": s.configuration()}
	for name := range s.commands {
		text, err := s.command(s.commands, name)
		if err != nil {
			return nil, err
		}
		out[pageName(name)+".8"] = text
	}
	title := fmt.Sprintf(".TH LENO 1 %q %q %q", s.day(), "leno "+s.version, "leno manual")
	intro, address, ok := strings.Cut(strings.Replace(s.intro, introTitle, title, 1), ".SH SEE ALSO\n")
	if !ok {
		return nil, errors.New("packaging/leno.1 has no section SEE ALSO")
	}
	p := &page{}
	p.WriteString(intro)
	others := []string{"leno.hcl(5)"}
	for _, name := range slices.Sorted(maps.Keys(s.commands)) {
		others = append(others, pageName(name)+"(8)")
	}
	p.seeAlso(others)
	p.WriteString(".PP\n" + address)
	out["leno.1"] = p.String()
	return out, nil
}

func (s *source) day() string { return s.date.Format(time.DateOnly) }

func pageName(command string) string { return "leno-" + strings.ReplaceAll(command, " ", "-") }

// command returns the page of one command, or of a group of commands.
func (s *source) command(all cli.Commands, name string) (string, error) {
	c, err := all[name]()
	if err != nil {
		return "", err
	}
	synopsis := c.Synopsis()
	p := newPage(pageName(name), "8", s.day(), s.version, strings.ToLower(synopsis[:1])+synopsis[1:])
	also := []string{"leno(1)"}
	if group, _, ok := strings.Cut(name, " "); ok {
		for _, sub := range all.Subcommands(group) {
			if sub := group + " " + sub; sub != name {
				also = append(also, pageName(sub)+"(8)")
			}
		}
	}
	leaf, ok := c.(*cli.Command)
	subcommands := all.Subcommands(name)
	switch {
	case ok:
		writeCommand(p, leaf)
	case len(subcommands) > 0:
		p.section("SYNOPSIS")
		p.line(".B leno %s", escape(name))
		p.line(".I subcommand\n.RI [ options ]\n.RI [ arguments ]")
		p.section("COMMANDS")
		for _, sub := range subcommands {
			part, err := all[name+" "+sub]()
			if err != nil {
				return "", err
			}
			p.item(sub, part.Synopsis()+".")
			also = append(also, pageName(name+" "+sub)+"(8)")
		}
	default:
		p.section("DESCRIPTION")
		p.example(c.Help())
	}
	if name == "agent" || name == "validate" || name == "fmt" {
		also = append(also, "leno.hcl(5)")
	}
	p.seeAlso(also)
	return p.String(), nil
}

func writeCommand(p *page, c *cli.Command) {
	p.section("SYNOPSIS")
	p.line(".B %s", escape(strings.TrimPrefix(c.UsageLine(), "Usage: ")))
	p.section("DESCRIPTION")
	for paragraph := range strings.SplitSeq(strings.TrimSpace(c.Spec.Help), "\n\n") {
		if strings.HasPrefix(paragraph, "  ") {
			p.example(paragraph)
		} else {
			p.paragraph(paragraph)
		}
	}
	own, common := c.Options()
	writeOptions(p, "OPTIONS", own)
	writeOptions(p, "COMMON OPTIONS", common)
	p.section("EXIT STATUS")
	p.line("%d done, %d failed, %d wrong usage.", cli.ExitDone, cli.ExitFailed, cli.ExitUsage)
	if c.Spec.Name == "agent" {
		p.line("%d a configuration that the agent cannot start with.", cli.ExitConfig)
	}
}

func writeOptions(p *page, title string, flags []*flag.Flag) {
	if len(flags) == 0 {
		return
	}
	p.section(title)
	for _, f := range flags {
		_, means := flag.UnquoteUsage(f)
		p.item(cli.OptionName(f), strings.ToUpper(means[:1])+means[1:]+".")
	}
}
