package command

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/command/cni"
)

// TestConflist: what is printed is a configuration that the plugin reads, and the
// one among the examples.
func TestConflist(t *testing.T) {
	var list struct {
		CNIVersion string            `json:"cniVersion"`
		Name       string            `json:"name"`
		Plugins    []json.RawMessage `json:"plugins"`
	}
	for _, args := range [][]string{nil, {"-network=blue"}} {
		got := world{}.run(append([]string{"cni", "-conflist"}, args...)...)
		if err := json.Unmarshal([]byte(got.stdout), &list); err != nil || got.code != exitDone || len(list.Plugins) != 2 {
			t.Fatalf("%v: %+v", err, got)
		}
		plugin := map[string]any{"cniVersion": list.CNIVersion, "name": list.Name}
		if err := json.Unmarshal(list.Plugins[0], &plugin); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(plugin)
		if err != nil {
			t.Fatal(err)
		}
		c, err := cni.Parse(text)
		if want := strings.TrimPrefix(strings.Join(args, ""), "-network="); err != nil || c.Network != want {
			t.Errorf("%v: %+v", err, c)
		}
	}
	got := world{}.run("cni", "-conflist", "-network=default")
	want := strings.Replace(read(t, "../examples/cni/leno.conflist"), `"name": "leno"`, `"name": "leno-default"`, 1)
	if diff := cmp.Diff(want, got.stdout); diff != "" {
		t.Errorf("examples/cni/leno.conflist is another one (-example +printed):\n%s", diff)
	}
}

// TestMainName: what a program is by its name and environment.
func TestMainName(t *testing.T) {
	for _, tt := range []struct {
		argv string
		want string
		code int
	}{
		{"/opt/cni/bin/leno-cni", "CNI leno-cni plugin v0.1.0\nCNI protocol versions supported: 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n", exitDone},
		{"leno-cni -help", "Usage: leno cni [options]", exitDone},
		{"leno-cni -conflist", `"type": "leno-cni"`, exitDone},
		{"/usr/local/bin/leno version", "leno 0.1.0", exitDone},
		{"leno", "Usage: leno COMMAND", exitUsage},
		{"leno cni", "CNI_COMMAND is not in the environment", exitUsage},
		{"leno cni -network=blue", "-network is for -conflist", exitUsage},
		{"", "Usage: leno COMMAND", exitUsage},
	} {
		t.Run(tt.argv, func(t *testing.T) {
			var out strings.Builder
			m := Meta{Stdout: &out, Stderr: &out, Version: "0.1.0", Getenv: func(string) string { return "" }}
			if code := Main(strings.Fields(tt.argv), m); code != tt.code || !strings.Contains(out.String(), tt.want) {
				t.Errorf("exit %d: %s", code, out.String())
			}
		})
	}
}
