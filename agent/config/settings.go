package config

import (
	"fmt"
	"slices"
	"strings"
)

// A Setting is one option of the files, or one block. There is one table of all settings: loading, defaults, the
// comparison for a reload, the masking of secrets, and everything that documents the options are derived from it.
type Setting struct {
	Name string // "consul.kv_prefix"; in a network "network.*.ip_masq"

	// Text says what the setting does, in Markdown with links relative to the page of the configuration. An option without
	// one is described together with the option before it.
	Text string

	Example  string // as written in a file, for an option whose default says too little
	Restart  string // why a running agent cannot apply another value; "" if a reload applies it
	Flag     string // the usage of its flag of `leno agent`, which also has an environment variable; "" if there is none
	Secret   bool   // the value is never shown
	Optional bool   // a block that has an effect even if it is empty

	*Field
}

// IsBlock reports whether the setting is a block.
func (s Setting) IsBlock() bool { return s.Kind == kindBlock }

// FlagName returns the name of the setting's flag: "consul-address" for "consul.address".
func (s Setting) FlagName() string { return strings.NewReplacer(".", "-", "_", "-").Replace(s.Name) }

// Variable returns the name of the environment variable beside the flag: "LENO_CONSUL_ADDRESS".
func (s Setting) Variable() string {
	return "LENO_" + strings.ToUpper(strings.ReplaceAll(s.Name, ".", "_"))
}

// block returns a row for a block, followed by its settings.
func block(name, text string, settings []Setting) []Setting {
	return append([]Setting{{Name: name, Text: text, Field: &Field{Kind: kindBlock}}}, below(name, settings)...)
}

func optionalBlock(name, text string, settings []Setting) []Setting {
	out := block(name, text, settings)
	out[0].Optional = true
	return out
}

// below adds the name of the block that contains the settings to their names.
func below(block string, settings []Setting) []Setting {
	for i := range settings {
		settings[i].Name = block + "." + settings[i].Name
	}
	return settings
}

// resetAll assigns the defaults of the settings that are selected.
func resetAll(settings []Setting, selects func(Setting) bool) {
	for _, s := range settings {
		if s.reset != nil && selects(s) {
			s.reset()
		}
	}
}

// Settings returns all settings that have a value, in the order of the table. The pools of a network are one value.
func Settings() []Setting {
	all := slices.Concat(new(Config).settings(nil), new(Network).settings("*"))
	return slices.DeleteFunc(all, func(s Setting) bool { return s.value == nil })
}

// Reference returns the table as the documentation shows it: with blocks, and with each option of a pool.
func Reference() []Setting {
	network := Setting{Name: "network.*", Field: &Field{Kind: kindBlock}, Text: networkText}
	return slices.Concat(
		new(Config).settings(nil), []Setting{network}, new(Pool).settings("*", ipv4), new(Pool).settings("*", ipv6),
		slices.DeleteFunc(new(Network).settings("*"), func(s Setting) bool { return s.Text == "" }),
	)
}

// Value is one setting and its value, as written in a file.
type Value struct{ Name, Value string }

// Values returns the whole configuration, defaults filled in, for people: for a secret only whether there is one.
func Values(c Config) []Value {
	all := c.settings(nil)
	for _, n := range c.Networks {
		all = append(all, n.settings(n.Name)...)
	}
	var out []Value
	for _, s := range all {
		if s.value != nil {
			out = append(out, Value{s.Name, withoutSecrets(s.shown(s.value()))})
		}
	}
	return out
}

// shown returns a value for people.
func (s Setting) shown(value string) string {
	switch {
	case !s.Secret:
		return value
	case value == `""`:
		return "not set"
	}
	return "set"
}

// Change is a setting that differs between two configurations.
type Change struct {
	Name     string // "consul.kv_prefix", "network.blue.ip_masq", "network.blue" for a block that is added or removed
	Old, New string // as written in a file; for a secret, only whether there is one
	Restart  bool
}

func (c Change) String() string { return fmt.Sprintf("%s: %s -> %s", c.Name, c.Old, c.New) }

// Compare returns the settings that differ, in the order of the table, then network by network.
func Compare(before, after Config) []Change {
	out := differences(before.settings(nil), after.settings(nil))
	for _, n := range before.Networks {
		if now := after.network(n.Name); now != nil {
			out = append(out, differences(n.settings(n.Name), now.settings(n.Name))...)
		} else {
			out = append(out, Change{Name: "network." + n.Name, Old: "defined", New: "not defined"})
		}
	}
	for _, n := range after.Networks {
		if before.network(n.Name) == nil {
			out = append(out, Change{Name: "network." + n.Name, Old: "not defined", New: "defined"})
		}
	}
	return out
}

// network returns the network of a name, nil if there is none.
func (c *Config) network(name string) *Network {
	for i := range c.Networks {
		if c.Networks[i].Name == name {
			return &c.Networks[i]
		}
	}
	return nil
}

// differences compares the same settings of two configurations.
func differences(before, after []Setting) []Change {
	var out []Change
	for i, s := range before {
		if s.value == nil {
			continue
		}
		if was, is := s.value(), after[i].value(); was != is {
			out = append(out, Change{Name: s.Name, Old: s.shown(was), New: s.shown(is), Restart: s.Restart != ""})
		}
	}
	return out
}
