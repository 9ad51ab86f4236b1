package network

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/registry"
)

// TestDiffering checks that the command that makes a block take effect can be copied into a shell, from any directory.
func TestDiffering(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"":                    "FILE",
		"/etc/leno.d/n.hcl":   "/etc/leno.d/n.hcl",
		"n.hcl":               filepath.Join(here, "n.hcl"),
		"/etc/leno d/n.hcl":   "'/etc/leno d/n.hcl'",
		"/etc/$HOME/n.hcl":    "'/etc/$HOME/n.hcl'",
		"/etc/it's/n.hcl":     `'/etc/it'\''s/n.hcl'`,
		"/etc/a;b/../c/n.hcl": "/etc/c/n.hcl",
	} {
		c := config.Defaults()
		c.NetworkFiles = map[string]string{"n": file, "m": "/etc/m.hcl"}
		got := Differing(c, config.Network{Name: "n"}, registry.Network{}, []string{"the pools", "the backend"})
		if !strings.HasSuffix(got, ", run: leno network apply "+want) ||
			!strings.HasPrefix(got, "the definition in Consul stays in force, and the block differs from it: the pools; the backend; ") {
			t.Errorf("%q: %s", file, got)
		}
	}
}

// TestDifferingEncryption checks that no command is suggested that would end required encryption.
func TestDifferingEncryption(t *testing.T) {
	c := config.Defaults()
	c.NetworkFiles = map[string]string{"n": "/n.hcl"}
	for _, tt := range []struct {
		block, stored string
		want          string
	}{
		{"", "", "run: leno network apply /n.hcl"},
		{"required", "", "run: leno network apply /n.hcl"},
		{"required", "required", "run: leno network apply /n.hcl"},
		{"", "required", "the network requires encryption and the block does not: correct the block in /n.hcl"},
	} {
		block, stored := config.Network{Name: "n", Encryption: tt.block}, registry.Network{Name: "n", Encryption: tt.stored}
		if got := Differing(c, block, stored, []string{"encryption"}); !strings.HasSuffix(got, tt.want) {
			t.Errorf("block %q, store %q: %s", tt.block, tt.stored, got)
		}
	}
}
