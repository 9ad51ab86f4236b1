package firewall

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/firewall/netfilter"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// uninstalled returns a kind whose programs are no longer installed.
func uninstalled(variant string) *iptables {
	i := newIPTables(hclog.NewNullLogger(), variant)
	for _, f := range i.families {
		f.command = "is-not-here-" + f.command
	}
	return i
}

// The rules that iptables-nft left are removed without it; rules of others stay.
func TestUninstalledNFT(t *testing.T) {
	t.Parallel()
	ns, h := nstest.New(t), iptablesHarness(netfilter.VariantNFT)
	ns.Sh(h.foreign)
	before := h.saved(ns)
	apply(t, ns, h.only(), two(), 4)
	gone := onlyOf(uninstalled(netfilter.VariantNFT))
	apply(t, ns, gone, nil, 4)
	if diff := cmp.Diff(before, h.saved(ns)); diff != "" {
		t.Errorf("not as before (-want +got):\n%s", diff)
	}
	apply(t, ns, gone, nil, 0)
}

// The rules that iptables-legacy left stay until its program is installed again, and an error reports them.
func TestUninstalledLegacy(t *testing.T) {
	t.Parallel()
	ns, h := nstest.New(t), iptablesHarness(netfilter.VariantLegacy)
	fw := New(hclog.NewNullLogger())
	fw.appliers = []tableWriter{uninstalled(netfilter.VariantLegacy), newNFTables(hclog.NewNullLogger())}
	networks := State{RandomFully: true, Networks: two()}
	ns.Sh("iptables-legacy -t nat -A POSTROUTING -j RETURN; iptables-legacy -A FORWARD -j ACCEPT") // rules of others
	ns.Do(func() {
		if report, err := fw.Apply(t.Context(), networks); err != nil || report.Leftover != nil || report.Choice.Kind != kindNFTables {
			t.Errorf("nothing of ours: %+v, %v", report, err)
		}
	})
	fw = New(hclog.NewNullLogger())
	fw.appliers = []tableWriter{uninstalled(netfilter.VariantLegacy), newNFTables(hclog.NewNullLogger())}
	apply(t, ns, h.only(), two(), 4)
	ns.Do(func() {
		report, err := fw.Apply(t.Context(), networks)
		if err != nil || !errors.Is(report.Leftover, ErrNotInstalled) || !strings.Contains(report.Leftover.Error(), "rules of iptables-legacy stay: IPv4 firewall: table nat has chains of ours") {
			t.Errorf("got %+v, %v", report, err)
		}
	})
	apply(t, ns, h.only(), nil, 4) // the program is installed again
	ns.Do(func() {
		if report, err := fw.Apply(t.Context(), networks); err != nil || report.Leftover != nil {
			t.Errorf("it has gone: %+v, %v", report, err)
		}
	})
}
