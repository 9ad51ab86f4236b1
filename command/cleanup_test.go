package command

import (
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/cleanup"
	"github.com/lenonet/leno/command/cli"
)

func TestCleanupUsage(t *testing.T) {
	for args, want := range map[string]string{
		"cleanup -network=":        "-network is empty",
		"cleanup -network a/b":     "network name",
		"cleanup default":          "unexpected argument",
		"cleanup -format=yaml":     "-format",
		"cleanup -dry-runs":        "did you mean -dry-run",
		"cleanup -config-file=":    "the path is empty",
		"cleanup -config-file /no": "",
	} {
		got := world{}.run(strings.Fields(args)...)
		code := cli.ExitUsage
		if want == "" {
			code, want = cli.ExitFailed, "Cannot read the configuration"
		}
		if got.code != code || got.stdout != "" || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestWriteCleanup(t *testing.T) {
	removed := []cleanup.Leftover{
		{Kind: cleanup.Device, Name: "leno-default", Network: "default", Detail: "vxlan, vni 1, port 8472"},
		{Kind: cleanup.Route, Name: "10.5.77.0/24", Network: "default", Detail: "via 10.5.77.0 dev leno-default onlink"},
		{Kind: cleanup.Firewall, Name: "iptables-nft filter", Detail: "jump from FORWARD to LENO-FORWARD, chain LENO-FORWARD"},
		{Kind: cleanup.Lease, Name: "10.5.34.0/24", Network: "default"},
	}
	left := []cleanup.Leftover{{Kind: cleanup.Lease, Name: "10.5.34.0/24", Network: "default", Reason: "the store cannot be reached: connection refused; it lapses by itself"}}
	foreign := []cleanup.Leftover{{Kind: cleanup.Device, Name: "leno-foo\x1b[2J", Detail: "bridge", Reason: "leno makes no such device"}}
	var out strings.Builder
	for _, r := range []cleanup.Report{
		{Removed: removed},
		{Removed: removed[:1], DryRun: true, Foreign: foreign},
		{Removed: removed[:3], Left: left, Foreign: foreign},
		{},
		{Foreign: foreign},
	} {
		writeCleanup(&out, r)
		out.WriteString("--\n")
	}
	golden(t, "cleanup", out.String())
	fits80(t, strings.ReplaceAll(out.String(), "  firewall iptables-nft filter (jump from FORWARD to LENO-FORWARD, chain LENO-FORWARD)", ""))
}
