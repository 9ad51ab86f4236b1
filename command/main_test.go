package command

import (
	"strings"
	"testing"

	"github.com/lenonet/leno/command/cli"
)

// TestMainName: the name and the environment of a program select what it does.
func TestMainName(t *testing.T) {
	for _, tt := range []struct {
		argv string
		want string
		code int
	}{
		{"/opt/cni/bin/leno-cni", "CNI leno-cni plugin v0.1.0\nCNI protocol versions supported: 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n", cli.ExitDone},
		{"leno-cni -help", "Usage: leno cni [options]", cli.ExitDone},
		{"leno-cni -conflist", `"type": "leno-cni"`, cli.ExitDone},
		{"/usr/local/bin/leno version", "leno 0.1.0", cli.ExitDone},
		{"leno", "Usage: leno COMMAND", cli.ExitUsage},
		{"leno cni", "CNI_COMMAND is not in the environment", cli.ExitUsage},
		{"leno cni -network=blue", "-network is for -conflist", cli.ExitUsage},
		{"", "Usage: leno COMMAND", cli.ExitUsage},
	} {
		t.Run(tt.argv, func(t *testing.T) {
			var out strings.Builder
			m := cli.Meta{Stdout: &out, Stderr: &out, Version: "0.1.0", Getenv: func(string) string { return "" }}
			if code := Main(strings.Fields(tt.argv), m); code != tt.code || !strings.Contains(out.String(), tt.want) {
				t.Errorf("exit %d: %s", code, out.String())
			}
		})
	}
}
