package command

import (
	"context"
	"fmt"
	"io"

	"github.com/posener/complete"

	"github.com/lenonet/leno/agent/config"
)

func validateSpec(m Meta) spec {
	files := &configFlags{}
	return spec{
		name: "validate", args: "[PATH...]", max: -1,
		synopsis: "Check configuration files",
		help: `
Reads configuration files and directories exactly as the agent does and
prints every error with its file, line and source line. When there is none,
prints the networks with their effective values. Touches neither Consul nor
an agent.

  $ leno validate /etc/leno.d
  $ leno validate leno.hcl blue.hcl`,
		flags: files.register, predict: complete.PredictOr(complete.PredictFiles("*.hcl"), complete.PredictFiles("*.json")),
		run: func(_ context.Context, args []string) error {
			sources := append(files.sources, args...)
			if len(sources) == 0 {
				return usagef("PATH is missing: name files or directories")
			}
			cfg, err := config.Load(sources, configOptions(m.Backends))
			if err != nil {
				return err
			}
			writeValid(m.Stdout, cfg)
			return nil
		},
	}
}

func writeValid(w io.Writer, cfg config.Config) {
	fmt.Fprintf(w, "The configuration is valid: %s, %s.\n", plural(len(cfg.Files), "file"), plural(len(cfg.Networks), "network"))
	for _, n := range cfg.Networks {
		fmt.Fprintln(w)
		list := []pair{{"Network", n.Name}}
		if len(n.Pools) == 0 {
			list = append(list, pair{"Pools", "as Consul has them"})
		} else if defined, err := definition(n); err == nil {
			list = append(append(list, poolPairs(defined.Pools)...), backendPairs(defined.Backend)...)
		}
		pairs(w, append(list, pair{"Subnet file", n.SubnetFile}))
	}
}
