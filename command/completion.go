package command

import (
	"context"
	"fmt"

	"github.com/posener/complete"

	"github.com/lenonet/leno/command/cli"
)

// completionScripts make a shell ask leno for completions. The line is in COMP_LINE, which bash sets by itself.
var completionScripts = map[string]string{
	"bash": "complete -C leno leno\n",
	"zsh": `(( $+functions[compdef] )) || { autoload -U compinit && compinit }
autoload -U +X bashcompinit && bashcompinit
complete -o nospace -C leno leno
`,
	"fish": `function __complete_leno
    set -lx COMP_LINE (commandline -cp)
    test -z (commandline -ct)
    and set COMP_LINE "$COMP_LINE "
    leno
end
complete -f -c leno -a "(__complete_leno)"
`,
}

func completionSpec(m cli.Meta) cli.Spec {
	return cli.Spec{
		Name: "completion", Args: "bash|zsh|fish", Min: 1, Max: 1,
		Synopsis: "Print the script that sets up completion in a shell",
		Help: `
Prints the script that makes a shell complete the command line of leno: its
commands, flags, and the networks, hosts and subnets that the agent knows.
The Debian and RPM packages install it for bash.

  $ leno completion bash
  $ leno completion bash > ~/.local/share/bash-completion/completions/leno
  $ leno completion zsh >> ~/.zshrc
  $ leno completion fish > ~/.config/fish/completions/leno.fish`,
		Predict: complete.PredictSet("bash", "zsh", "fish"),
		Run: func(_ context.Context, args []string) error {
			script, ok := completionScripts[args[0]]
			if !ok {
				return cli.UsageErrorf("%q is none of bash, zsh and fish", args[0])
			}
			_, err := fmt.Fprint(m.Stdout, script)
			return err
		},
	}
}
