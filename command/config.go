package command

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/registry"
)

// stdinName replaces a file's name in errors.
const stdinName = "standard input"

// configOptions returns the checks of configuration files that belong to the registry and the
// backends, which package config does not know. `agent` and `validate` use the same checks, so
// that both accept the same files. With nil backends any type and options are accepted.
func configOptions(backends map[string]backend.Type) config.Options {
	o := config.Options{
		CheckNetworkName: registry.CheckNetworkName,
		CheckPool: func(p config.Pool) error {
			_, err := registry.Pool(p).Normalize()
			return err
		},
		CheckPlan: func(pools []config.Pool) error {
			var plan registry.Plan
			for _, p := range pools {
				plan = append(plan, registry.Pool(p))
			}
			_, err := plan.Normalize()
			return err
		},
	}
	if backends == nil {
		return o
	}
	o.Collision = func(one, other config.Backend, name string) string {
		mine, theirs := backends[one.Type].Uses(one.Options), backends[other.Type].Uses(other.Options)
		if mine.Collides(theirs) {
			return mine.Against(theirs, name)
		}
		return ""
	}
	o.CheckMTU = backend.CheckMTUOption
	o.CheckEncrypts = func(kind string) error {
		return definition.CheckEncryption(registry.Network{
			Encryption: registry.EncryptionRequired,
			Backend:    registry.Backend{Type: kind},
		}, backends)
	}
	o.Backends = map[string]func(json.RawMessage) (json.RawMessage, error){}
	for name, b := range backends {
		o.Backends[name] = b.Normalize
	}
	return o
}

// storeName returns the name of the agent's store for messages: "etcd", "Kubernetes" or "Consul".
func storeName(ctx context.Context, c *api.Client) string {
	self, err := c.Self(ctx)
	if err != nil {
		return config.StoreName(config.StoreConsul)
	}
	kind, _, _ := strings.Cut(self.Registry, " ") // of "etcd at 127.0.0.1:2379"
	return config.StoreName(kind)
}

// configFlags are -config-file and -config-dir, in the order given.
type configFlags struct{ sources []string }

func (c *configFlags) register(fs *flag.FlagSet) {
	add := func(path string) error {
		if path == "" {
			return errors.New("the path is empty")
		}
		c.sources = append(c.sources, path)
		return nil
	}
	fs.Func("config-file", "configuration `file`, HCL or JSON; may be repeated", add)
	fs.Func("config-dir",
		"`directory` with configuration files, read in order of name; may be repeated", add)
}

// overrides are the settings that flags and the environment give a command, by name.
type overrides map[string]config.Override

// register declares the flags of the named settings, of all that have one without names. Flags take precedence over
// the environment, and the environment over files. A flag without text overrides both with nothing.
func (o overrides) register(m cli.Meta, fs *flag.FlagSet, names ...string) {
	for _, s := range config.Settings() {
		if s.Flag == "" || len(names) > 0 && !slices.Contains(names, s.Name) {
			continue
		}
		if v := m.Getenv(s.Variable()); v != "" {
			o[s.Name] = config.Override{Value: v, Source: s.Variable()}
		}
		fs.Func(s.FlagName(), s.Flag, func(value string) error {
			o[s.Name] = config.Override{Value: value, Source: "-" + s.FlagName()}
			return nil
		})
	}
}

// openRegistryAs opens the store with a token that the user gave in place of the agent's, "" for none.
func openRegistryAs(conf config.Config, log hclog.Logger, token string) (registry.Registry, string, error) {
	if token != "" {
		conf.Consul.UseToken(token) // a login with the agent's JWT may be impossible here
	}
	reg, name, err := agent.OpenRegistry(conf, log, nil)
	if err == nil && token != "" && conf.Store() != config.StoreConsul {
		reg = reg.As(token)
	}
	return reg, name, err
}
