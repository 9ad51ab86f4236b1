package command

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/handover"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
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

// TestReserveFor: the reservation is for the name that the host's agent has.
func TestReserveFor(t *testing.T) {
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for configured, want := range map[string]string{"": hostname, "host-a": "host-a"} {
		plan, err := registry.Plan{{Prefix: netip.MustParsePrefix("10.5.0.0/16")}}.Normalize()
		if err != nil {
			t.Fatal(err)
		}
		n := registry.Network{Name: "default", Plan: plan, Backend: registry.Backend{Type: "vxlan", Object: []byte(`{"type":"vxlan"}`)}}
		reg := memory.New().Client()
		if err := reg.PutNetwork(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		l := registry.Lease{Slot: 7, Subnets: plan.Subnets(7)}
		if err := reserveFor(t.Context(), reg, config.Config{NodeName: configured}, n, l); err != nil {
			t.Fatal(err)
		}
		set, _, err := reg.WatchReservations(t.Context(), n, 0)
		if err != nil || len(set.Reservations) != 1 || set.Reservations[0].Node != want || set.Reservations[0].Subnet != l.Subnet() {
			t.Errorf("%+v, %v", set, err)
		}
	}
}
