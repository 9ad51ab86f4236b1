package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent"
)

// configuration returns the page of the configuration, with the options in the order of the example.
func (s *source) configuration() string {
	p := newPage("leno.hcl", "5", s.day(), s.version, "configuration of the leno agent")
	p.section("DESCRIPTION")
	p.paragraph("The agent reads any number of files and directories (-config-file, -config-dir). Files are in HCL, or in JSON " +
		"if their name ends in .json. If an option is set more than once, the last value wins. A network must be defined in one " +
		"place only. Durations have a unit: \"90s\", \"2m\", \"1h30m\". The values below are the defaults, except in network and login blocks.")
	p.paragraph("Only a network is required:")
	p.example("network \"default\" {\n  ipv4 {\n    prefix = \"10.5.0.0/16\"\n  }\n}")
	p.paragraph("Check files with leno validate.")
	p.section("OPTIONS")
	for _, o := range s.options {
		if o.IsBlock() {
			p.subsection(blockTitle(o.Name))
			if o.text != "" {
				p.paragraph(o.text)
			}
			if o.last() == "backend" {
				s.backendItems(p)
			}
			continue
		}
		p.item(o.last()+" = "+o.exampleValue(), o.withRestart())
	}
	p.section("FILES")
	p.item("/etc/leno.d", "The directory that the packages' service reads.")
	p.item("/usr/share/leno/leno.schema.json", "A JSON Schema of files in JSON.")
	p.item("/usr/share/doc/leno/examples/config.hcl.example", "These options as a file.")
	p.seeAlso([]string{"leno(1)", "leno-agent(8)", "leno-validate(8)", "leno-fmt(8)"})
	return p.String()
}

// backendItems writes the options of each backend.
func (s *source) backendItems(p *page) {
	for _, name := range slices.Sorted(maps.Keys(s.backendTexts)) {
		p.subsection(blockTitle("network.*.backend." + name))
		for _, o := range backendOptions(agent.Backends()[name].Normalize) {
			p.item(o.name+" = "+o.standard, s.backendTexts[name][o.name])
		}
	}
}

// blockTitle returns a block as it is written in a file: "network NAME / ipv4".
func blockTitle(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, ".*", " NAME"), ".", " / ")
}
