package network

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/config"
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
		got := Differing(c, "n", []string{"the pools", "the backend"})
		if !strings.HasSuffix(got, ", run: leno network apply "+want) ||
			!strings.HasPrefix(got, "the definition in Consul stays in force, and the block differs from it: the pools; the backend; ") {
			t.Errorf("%q: %s", file, got)
		}
	}
}
