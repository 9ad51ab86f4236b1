package cni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestCNITidy: gateways that the host no longer has are removed from a bridge, according to the
// subnet file they came from, or the one that replaced it in the default place. An untrusted file
// is ignored.
func TestCNITidy(t *testing.T) {
	const before, now = "10.5.34.1/24", "10.5.40.1/24"
	text := "LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=" + now + "\nLENO_MTU=1450\n"
	for _, tt := range []struct {
		name  string
		files func(remembered, usual string) error
		stays bool
	}{
		{"where it was", func(remembered, _ string) error { return os.WriteFile(remembered, []byte(text), 0o644) }, false},
		{"moved to where they lie as usual", func(_, usual string) error { return os.WriteFile(usual, []byte(text), 0o644) }, false},
		{"gone", func(string, string) error { return nil }, true},
		{"unusable where it was", func(remembered, usual string) error {
			if err := os.WriteFile(remembered, nil, 0o644); err != nil {
				return err
			}
			return os.WriteFile(usual, []byte(text), 0o644)
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, dataDir := &plugin{runDir: ownDir(t)}, ownDir(t)
			remembered := filepath.Join(ownDir(t), "elsewhere.env")
			given := filepath.Join(gatewayDir(dataDir), "default", "cni0")
			if err := os.MkdirAll(filepath.Dir(given), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(given, []byte(remembered+"\n"+before+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := tt.files(remembered, p.defaultSubnetFile("default")); err != nil {
				t.Fatal(err)
			}
			ns := nstest.New(t)
			ns.Sh("ip link add cni0 type bridge; ip addr add " + before + " dev cni0; ip addr add " + now + " dev cni0")
			ns.Do(func() { p.removeOldGateways(dataDir) })
			got := ns.Sh("ip -o -4 addr show dev cni0")
			if strings.Contains(got, before) != tt.stays || !strings.Contains(got, now) {
				t.Errorf("%s stays: %t is wanted:\n%s", before, tt.stays, got)
			}
		})
	}
}
