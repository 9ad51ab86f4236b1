package firewall

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/firewall/netfilter"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestNamesOfBothVariants: while an operator changes the preferred variant, the plain names lead to both. Rules of one
// variant are neither written nor removed by the program of the other.
func TestNamesOfBothVariants(t *testing.T) {
	ns, dir := nstest.New(t), t.TempDir()
	for _, command := range []string{"iptables", "ip6tables"} {
		for part, variant := range map[string]string{"": netfilter.VariantLegacy, "-save": netfilter.VariantLegacy, "-restore": netfilter.VariantNFT} {
			program, err := exec.LookPath(command + "-" + variant + part)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(program, filepath.Join(dir, command+part)); err != nil {
				t.Fatal(err)
			}
		}
	}
	legacy, nft := newIPTables(hclog.NewNullLogger(), netfilter.VariantLegacy), newIPTables(hclog.NewNullLogger(), netfilter.VariantNFT)
	apply := func(i *iptables, want rules) {
		t.Helper()
		ns.Do(func() {
			if _, err := i.apply(t.Context(), want); err != nil {
				t.Fatal(err)
			}
		})
	}
	apply(legacy, random(two()))
	apply(nft, random(two()))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	apply(legacy, rules{})
	if saved := ns.Sh("iptables-nft-save"); strings.Count(saved, "-j LENO-") != 3 {
		t.Errorf("rules of %s:\n%s", nft.kind(), saved)
	}
	if saved := ns.Sh("iptables-legacy-save"); strings.Contains(saved, "LENO-") {
		t.Errorf("rules of %s are left:\n%s", legacy.kind(), saved)
	}
}
