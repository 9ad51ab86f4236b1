package command

import (
	"flag"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/command/cli"
)

// TestOverrides: a flag takes precedence over the environment, also one without text.
func TestOverrides(t *testing.T) {
	environment := map[string]string{"LENO_NODE_NAME": "a", "LENO_DATA_DIR": "/a", "LENO_CONSUL_ADDRESS": "192.0.2.1:8500", "LENO_LOG_LEVEL": "debug"}
	got, fs := overrides{}, flag.NewFlagSet("", flag.ContinueOnError)
	got.register(cli.Meta{Getenv: func(name string) string { return environment[name] }}, fs, "node_name", "data_dir", "consul.address")
	if err := fs.Parse([]string{"-node-name=", "-data-dir=/b"}); err != nil {
		t.Fatal(err)
	}
	want := overrides{"node_name": {Source: "-node-name"}, "data_dir": {Value: "/b", Source: "-data-dir"}, "consul.address": {Value: "192.0.2.1:8500", Source: "LENO_CONSUL_ADDRESS"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(config.Override{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, args := range []string{"agent -node-name= -config-file=/no", "cleanup -consul-address= -config-file=/no"} {
		if got := (world{env: environment}).run(strings.Fields(args)...); got.code == cli.ExitUsage || !strings.Contains(got.stderr, "no such file") {
			t.Errorf("%s: %+v", args, got)
		}
	}
}
