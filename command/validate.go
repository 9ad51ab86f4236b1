package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"

	"github.com/posener/complete"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/files"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/describe"
	"github.com/lenonet/leno/internal/plural"
)

func validateSpec(m cli.Meta) cli.Spec {
	files := &configFlags{}
	skipFiles := false
	return cli.Spec{
		Name: "validate", Args: "[PATH...]", Max: -1,
		Synopsis: "Check configuration files",
		Help: `
Reads configuration files and directories as the agent does, and prints every
error with its file, line and source line, or the networks with their
effective values. It contacts neither Consul nor an agent.

The files that the configuration names, such as a token file and certificates,
must exist on this host and be usable. On another machine, give -no-files. A
file that you are not allowed to read is only a warning, because the agent's
user may be.

  $ leno validate /etc/leno.d
  $ leno validate leno.hcl blue.hcl
  $ leno validate -no-files leno.hcl`,
		Flags: func(set *flag.FlagSet) {
			files.register(set)
			set.BoolVar(&skipFiles, "no-files", false,
				"do not check the files that the configuration names: it is for another host")
		},
		Predict: complete.PredictOr(complete.PredictFiles("*.hcl"), complete.PredictFiles("*.json")),
		Run: func(ctx context.Context, args []string) error {
			sources := append(files.sources, args...)
			if len(sources) == 0 {
				return cli.UsageErrorf("PATH is missing: name files or directories")
			}
			options := configOptions(m.Backends)
			if !skipFiles {
				options.CheckFiles = func(c config.Config) map[string]error { return checkFiles(ctx, m.Stderr, c) }
			}
			cfg, err := config.Load(sources, options)
			if err != nil {
				return err
			}
			writeValid(m.Stdout, cfg)
			return nil
		},
	}
}

// checkFiles returns the errors of the files that a configuration names. It prints a warning for
// files that this user has no right to check.
func checkFiles(ctx context.Context, w io.Writer, c config.Config) map[string]error {
	ctx, cancel := context.WithTimeout(ctx, files.ReadTimeout)
	defer cancel()
	wrong := agent.CheckFiles(ctx, c)
	for _, setting := range slices.Sorted(maps.Keys(wrong)) {
		if errors.Is(wrong[setting], fs.ErrPermission) {
			fmt.Fprintf(w, "Warning: %s could not be checked: %s\n", setting, cli.Escape(wrong[setting].Error()))
			delete(wrong, setting)
		}
	}
	return wrong
}

func writeValid(w io.Writer, cfg config.Config) {
	fmt.Fprintf(w, "The configuration is valid: %s, %s.\n", plural.Count(len(cfg.Files), "file"),
		plural.Count(len(cfg.Networks), "network"))
	for _, n := range cfg.Networks {
		fmt.Fprintln(w)
		list := []cli.Pair{{"Network", n.Name}}
		if len(n.Pools) == 0 {
			list = append(list, cli.Pair{"Pools", "as " + cfg.StoreName() + " has them"})
		} else if of, err := definition.FromBlock(n); err == nil {
			defined := networkOf(of)
			list = append(append(list, describe.PoolPairs(defined.Pools)...), describe.BackendPairs(defined.Backend)...)
			list = append(list, cli.Pair{"Encryption", defined.Encryption})
		}
		cli.WritePairs(w, append(list, cli.Pair{"Subnet file", n.SubnetFile}))
	}
}
