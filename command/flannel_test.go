package command

import (
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/handover"
	"github.com/lenonet/leno/command/cli"
)

func TestWriteHandover(t *testing.T) {
	device := handover.Change{Kind: handover.Device, Name: "flannel.1", Detail: "gets the alias leno network default"}
	route := handover.Change{Kind: handover.Route, Name: "10.5.77.0/24", Detail: "via 10.5.77.0"}
	removed := handover.Change{Kind: handover.Route, Name: "10.5.0.0/16", Removed: true}
	var out strings.Builder
	for _, r := range []handover.Report{
		{Network: "default", Changes: []handover.Change{device, route}},
		{Network: "default", DryRun: true, Changes: []handover.Change{device, route, removed}},
		{Network: "default"},
	} {
		writeHandover(&out, r)
		out.WriteString("--\n")
	}
	golden(t, "flannel handover", out.String())
	fits80(t, out.String())
}

func TestHandoverUsage(t *testing.T) {
	for args, want := range map[string]string{
		"-network=a/b":     "network name",
		"default":          "unexpected argument",
		"-format=yaml":     "-format",
		"-config-file /no": "Cannot read the configuration",
		"":                 "neither an etcd nor a kubernetes block",
	} {
		for _, verb := range []string{"adopt ", "return "} {
			got := world{}.run(strings.Fields("flannel " + verb + args)...)
			if got.code == cli.ExitDone || got.stdout != "" || !strings.Contains(got.stderr, want) {
				t.Errorf("%s%s: %+v", verb, args, got)
			}
		}
	}
}
