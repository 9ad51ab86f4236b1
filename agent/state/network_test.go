package state

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/registry"
)

func TestSavedState(t *testing.T) {
	dir := t.TempDir()
	if got, err := Load(dir, "n"); err != nil || len(got.Subnets) != 0 {
		t.Errorf("no file: %+v, %v", got, err)
	}
	backend, err := registry.NewBackend("vxlan", []byte(`{"vni":1}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Network{Version: 1, Network: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}, Session: "s",
		Pools: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}, Carriage: registry.Carriage{Backend: backend}}
	if err := Save(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := Load(dir, "n")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	for name, content := range map[string]string{"broken": "{", "version": `{"version":9,"network":"n"}`, "network": `{"version":1,"network":"m"}`} {
		t.Run(name, func(t *testing.T) {
			path := Path(dir, "n")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(dir, "n"); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("error does not name the file: %v", err)
			}
		})
	}
}

func TestSavedNetworks(t *testing.T) {
	dir := t.TempDir()
	must(t, Save(dir, Network{Network: "n"}))
	must(t, Save(dir, Network{Network: "m"}))
	file, err := os.ReadFile(Path(dir, "n"))
	must(t, err)
	for name, data := range map[string]string{
		"n.json.bak": string(file), "backup.json": string(file), ".json": `{"version":1}`,
		"broken.json": "{", "notes.json": `{"text":"of another program"}`, "empty.json": "",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
	}
	must(t, os.Mkdir(filepath.Join(dir, "folder.json"), 0o700))
	if got := Networks(dir); !slices.Equal(got, []string{"m", "n"}) {
		t.Errorf("%q", got)
	}
}
