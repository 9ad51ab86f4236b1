package config

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/lenonet/leno/agent/files"
)

// Options holds what the loader needs from the rest of the agent. With the zero value it checks only what config
// itself can check.
type Options struct {
	// Dev starts from Dev() instead of Defaults().
	Dev bool

	// Overrides are read after all files, as if the last of them set them. Keys are attributes ("log_level",
	// "consul.address").
	Overrides map[string]Override

	// Backends maps each backend's type to its Normalize function. An error,
	// or each of several joined ones, that has a method OptionName() string
	// is shown at that option's line. nil takes any type and options.
	Backends map[string]func(options json.RawMessage) (json.RawMessage, error)

	// Collision returns, as a part of a sentence, what the backend of one network needs on a host but the other
	// network, called name, already has there: "udp port 8285, which network a uses". It returns "" if there is no
	// collision. Both have types of Backends and effective options. nil checks nothing.
	Collision func(one, other Backend, name string) string

	// CheckEncrypts returns an error if a type of backend does not encrypt. nil checks nothing.
	CheckEncrypts func(backend string) error

	// CheckMTU returns an error if a backend's effective options have an MTU that is too small for one of the pools. nil
	// checks nothing.
	CheckMTU func(options json.RawMessage, pools []netip.Prefix) error

	// CheckNetworkName, CheckPool and CheckPlan apply the registry's limits. A
	// pool is checked first, alone, and zero fields in it take defaults; a
	// plan is one network's pools, each of which passed. nil checks nothing.
	CheckNetworkName func(name string) error
	CheckPool        func(Pool) error
	CheckPlan        func([]Pool) error

	// CheckFiles checks the files on this host that a configuration names, and returns errors by setting
	// ("http.tls.key_file"). nil checks none.
	CheckFiles func(Config) map[string]error
}

// Override is the value of an attribute that a flag or an environment variable sets.
type Override struct {
	Value  string // as written between quotes in a file
	Source string // what sets it, in errors: "-log-level" or "LENO_LOG_LEVEL"
}

// Load reads sources, files and directories, in order. From a directory it reads the files ending in .hcl and .json,
// sorted by name, not hidden ones and not those in directories below it. A file ending in .json is JSON, one ending in
// .hcl is in HCL's native syntax, and any other is JSON if it begins with a brace. Sources that are directories without
// any such file are an error.
//
// Files are merged: the last value read of each attribute wins, also inside consul, etcd, kubernetes, lease, underlay,
// firewall, http and telemetry blocks. Only one of the blocks of the three stores may be given. A network is defined
// in one place: a second block of the same name is an error. Without sources Load returns Defaults (or Dev). The error
// is an *Errors with all errors of all files. A file that blocks is an error after ReadTimeout.
func Load(sources []string, o Options) (Config, error) {
	ctx, cancel := context.WithTimeout(context.Background(), files.ReadTimeout)
	defer cancel()
	return load(ctx, sources, o)
}

// load is Load, but gives up reading when ctx ends.
func load(ctx context.Context, sources []string, o Options) (Config, error) {
	l := newLoader(o)
	paths := l.expand(ctx, sources)
	if len(paths) == 0 && len(sources) > 0 && !l.diags.HasErrors() {
		l.unplaced("No configuration", fmt.Sprintf("There is no file with a name that ends in .hcl or .json in %s. "+
			"Create one, for example %s, or name another file or directory.",
			strings.Join(sources, " and "), filepath.Join(sources[0], "leno.hcl")))
	}
	for _, path := range paths {
		src, err := files.Read(ctx, path)
		if err != nil {
			l.unplaced("Cannot read the configuration", err.Error())
		} else {
			l.file(path, src)
		}
		if ctx.Err() != nil {
			break // an error names the file that blocked
		}
	}
	return l.finish()
}

// Parse reads one file's content. The name determines the syntax, as with Load, and appears in errors.
func Parse(src []byte, filename string, o Options) (Config, error) {
	l := newLoader(o)
	l.file(filename, src)
	return l.finish()
}

// loader collects the configuration and its errors.
type loader struct {
	o        Options
	parser   *hclparse.Parser
	cfg      Config
	settings []Setting // of cfg
	networks *networkLoader
	diags    hcl.Diagnostics

	by      map[string]*hcl.Attribute // by the name of a setting, what set it last; one without an entry has its default
	refused map[string]bool           // by the name of a setting, whether one of its values was refused
	blocks  map[string]*hcl.Range     // by the name of a block, such as "consul.login", where the first one is
}

func newLoader(o Options) *loader {
	l := &loader{o: o, parser: hclparse.NewParser(), cfg: Defaults(),
		by: map[string]*hcl.Attribute{}, refused: map[string]bool{}, blocks: map[string]*hcl.Range{}}
	l.networks = &networkLoader{loader: l}
	if o.Dev {
		l.cfg = Dev()
		var err error
		if l.cfg.Networks[0].Backend, err = o.defaultBackend(); err != nil {
			l.unplaced("Invalid default backend", err.Error())
		}
	}
	l.cfg.NetworkFiles = map[string]string{}
	l.settings = l.cfg.settings(o.checkNetworkName)
	return l
}

// expand replaces directories by the files in them.
func (l *loader) expand(ctx context.Context, sources []string) (paths []string) {
	for _, source := range sources {
		found, err := files.Within(ctx, source, func() ([]string, error) { return filesOf(source) })
		if err != nil {
			l.unplaced("Cannot read the configuration", err.Error())
		}
		if ctx.Err() != nil {
			return nil
		}
		paths = append(paths, found...)
	}
	return paths
}

// filesOf returns a file itself, or the configuration files of a directory.
func filesOf(source string) (files []string, err error) {
	info, err := os.Stat(source)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{source}, nil
	}
	entries, err := os.ReadDir(source) // sorted by name
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !IsRead(e.Name()) {
			continue
		}
		path := filepath.Join(source, e.Name())
		// Stat follows links: configuration is often mounted as links to files.
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			continue
		}
		files = append(files, path)
	}
	return files, nil
}

// IsRead reports whether a file of this name in a directory belongs to the configuration. Hidden files do not: editors
// create them beside the file that is open, such as .#leno.hcl, a link to nowhere.
func IsRead(name string) bool {
	ext := filepath.Ext(name)
	return !strings.HasPrefix(name, ".") && (ext == ".hcl" || ext == ".json")
}

// file reads one file into the configuration.
func (l *loader) file(name string, src []byte) {
	if slices.Contains(l.cfg.Files, name) {
		l.unplaced("File given twice", fmt.Sprintf("%s is given more than once.", name))
		return
	}
	l.cfg.Files = append(l.cfg.Files, name)
	l.decode(name, src)
}

func (l *loader) decode(name string, src []byte) {
	parse := l.parser.ParseHCL
	if isJSON(name, src) {
		parse = l.parser.ParseJSON
	}
	file, diags := parse(src, name)
	l.diags = append(l.diags, diags...)
	// After a syntax error every missing name would be another error; the one cause is enough.
	if file == nil || file.Body == nil || diags.HasErrors() {
		return
	}
	before := len(l.diags)
	blocks, found := l.options(file.Body, "", l.settings)
	if !found && len(l.diags) == before {
		l.cfg.Empty = append(l.cfg.Empty, name)
	}
	for _, b := range blocks {
		if b.Type != "network" {
			l.block(b, b.Type)
		}
	}
	for _, b := range blocks { // a network's errors name the store, which other blocks determine
		if b.Type == "network" {
			l.networks.read(b)
		}
	}
}

// finish reads the overrides, makes the checks that need all files, and returns the result.
func (l *loader) finish() (Config, error) {
	order := slices.Clone(l.cfg.Files)
	for _, setting := range slices.Sorted(maps.Keys(l.o.Overrides)) {
		o := l.o.Overrides[setting]
		order = append(order, o.Source)
		l.decode(o.Source, o.file(setting))
	}
	if l.o.Overrides["consul.token_file"].Value != "" { // precedes every source of a token in files
		l.cfg.Consul.Token, l.cfg.Consul.Login = "", Login{}
		delete(l.blocks, "consul.login")
	}
	l.networks.addToConfig()
	l.check()
	if l.o.CheckFiles != nil {
		l.checkFiles()
	}
	if l.blocks[StoreEtcd] != nil || l.blocks[StoreKubernetes] != nil {
		l.cfg.Consul = Consul{}
	}
	if err := asErrors(l.diags, l.parser.Files(), order); err != nil {
		return Config{}, err
	}
	return l.cfg, nil
}

// file formats the override as a file, so that its value is read, checked and shown like any other.
func (o Override) file(setting string) []byte {
	file := hclwrite.NewEmptyFile()
	body, path := file.Body(), strings.Split(setting, ".")
	for _, block := range path[:len(path)-1] {
		body = body.AppendNewBlock(block, nil).Body()
	}
	body.SetAttributeValue(path[len(path)-1], cty.StringVal(o.Value))
	return file.Bytes()
}
