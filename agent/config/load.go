package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

// Options is what the loader needs from the rest of the agent. The zero value
// checks what config itself can check.
type Options struct {
	// Dev starts from Dev() instead of Defaults().
	Dev bool

	// Overrides is read after all files, as if the last of them set it: keys
	// are attributes ("log_level", "consul.address"), values are strings as
	// written between quotes in a file. Meant for command line flags; errors
	// name the file "command line".
	Overrides map[string]string

	// Backends maps each backend's type to its Normalize function. An error,
	// or each of several joined ones, that has a method OptionName() string
	// is shown at that option's line. nil takes any type and options.
	Backends map[string]func(options json.RawMessage) (json.RawMessage, error)

	// CheckNetworkName, CheckPool and CheckPlan apply the registry's limits. A
	// pool is checked first, alone, and zero fields in it take defaults; a
	// plan is one network's pools, each of which passed. nil checks nothing.
	CheckNetworkName func(name string) error
	CheckPool        func(Pool) error
	CheckPlan        func([]Pool) error
}

// overridesName stands where a file's name would.
const overridesName = "command line"

// Load reads sources, files and directories, in order. Of a directory it reads
// the files ending in .hcl and .json, sorted by name, not those in folders below
// it. A file ending in .json is JSON, any other HCL's native syntax.
//
// Files are merged: of each attribute the last one read wins, also inside
// consul, lease, underlay, firewall, http and telemetry blocks. A network is defined in one
// place: a second block of the same name is an error. Without sources the
// answer is Defaults (or Dev). The error is an *Errors with all errors of all
// files.
func Load(sources []string, o Options) (Config, error) {
	l := newLoader(o)
	for _, path := range l.expand(sources) {
		src, err := os.ReadFile(path)
		if err != nil {
			l.unplaced("Cannot read the configuration", err.Error())
			continue
		}
		l.file(path, src)
	}
	return l.finish()
}

// Parse reads one file's content. The name tells the syntax and stands in
// errors.
func Parse(src []byte, filename string, o Options) (Config, error) {
	l := newLoader(o)
	l.file(filename, src)
	return l.finish()
}

// loader gathers the configuration and what is wrong with it.
type loader struct {
	o      Options
	parser *hclparse.Parser
	cfg    Config
	diags  hcl.Diagnostics

	// by is the attribute that set a value last, by the value's address:
	// &l.cfg.Lease.TTL. A value that is not in it is a default.
	by map[any]*hcl.Attribute

	networks []*networkDraft
}

func newLoader(o Options) *loader {
	l := &loader{o: o, parser: hclparse.NewParser(), cfg: Defaults(), by: map[any]*hcl.Attribute{}}
	if o.Dev {
		l.cfg = Dev()
	}
	return l
}

// expand replaces directories by the files in them.
func (l *loader) expand(sources []string) []string {
	var files []string
	for _, source := range sources {
		info, err := os.Stat(source)
		if err != nil {
			l.unplaced("Cannot read the configuration", err.Error())
			continue
		}
		if !info.IsDir() {
			files = append(files, source)
			continue
		}
		entries, err := os.ReadDir(source) // sorted by name
		if err != nil {
			l.unplaced("Cannot read the configuration", err.Error())
			continue
		}
		for _, e := range entries {
			ext := filepath.Ext(e.Name())
			path := filepath.Join(source, e.Name())
			// Stat follows links: configuration is often mounted as links to files.
			if info, err := os.Stat(path); err == nil && info.IsDir() || ext != ".hcl" && ext != ".json" {
				continue
			}
			files = append(files, path)
		}
	}
	return files
}

// file reads one file into the configuration.
func (l *loader) file(name string, src []byte) {
	if slices.Contains(l.cfg.Files, name) {
		l.unplaced("File given twice", fmt.Sprintf("%s stands among the files more than once.", name))
		return
	}
	l.cfg.Files = append(l.cfg.Files, name)
	l.decode(name, src)
}

func (l *loader) decode(name string, src []byte) {
	parse := l.parser.ParseHCL
	if isJSON(name) {
		parse = l.parser.ParseJSON
	}
	file, diags := parse(src, name)
	l.diags = append(l.diags, diags...)
	// After a syntax error every name that is missing would be an error of its
	// own; the one cause is enough.
	if file == nil || file.Body == nil || diags.HasErrors() {
		return
	}
	var shape fileShape
	l.diags = append(l.diags, gohcl.DecodeBody(file.Body, nil, &shape)...)
	l.read(&shape)
}

// finish reads the overrides, makes the checks that need the whole, and
// answers.
func (l *loader) finish() (Config, error) {
	order := slices.Clone(l.cfg.Files)
	if len(l.o.Overrides) > 0 {
		order = append(order, overridesName)
		l.decode(overridesName, overrides(l.o.Overrides))
	}
	l.finishNetworks()
	l.check()
	if err := asErrors(l.diags, l.parser.Files(), order); err != nil {
		return Config{}, err
	}
	return l.cfg, nil
}

// overrides writes the map as a file, so that values are read, checked and
// shown like any other.
func overrides(values map[string]string) []byte {
	file := hclwrite.NewEmptyFile()
	blocks := map[string]*hclwrite.Body{}
	// Attributes of the file come before its blocks: names without a dot first.
	keys := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		if n := strings.Count(a, ".") - strings.Count(b, "."); n != 0 {
			return n
		}
		return strings.Compare(a, b)
	})
	for _, key := range keys {
		path := strings.Split(key, ".")
		body, at := file.Body(), ""
		for _, part := range path[:len(path)-1] {
			at += part + "."
			if blocks[at] == nil {
				blocks[at] = body.AppendNewBlock(part, nil).Body()
			}
			body = blocks[at]
		}
		name := path[len(path)-1]
		body.SetAttributeValue(name, cty.StringVal(values[key]))
	}
	return file.Bytes()
}
