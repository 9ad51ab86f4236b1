package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestSubnetFile(t *testing.T) {
	tests := []struct {
		name  string
		pools []string
		want  []string
	}{
		{"IPv4", []string{"10.5.0.0/16"}, []string{
			"NETWORK=10.5.0.0/16", "SUBNET=10.5.34.1/24", "MTU=1450", "IPMASQ=true"}},
		{"dual stack", []string{"10.5.0.0/16", "fd00:5::/48"}, []string{
			"NETWORK=10.5.0.0/16", "SUBNET=10.5.34.1/24", "IPV6_NETWORK=fd00:5::/48", "IPV6_SUBNET=fd00:5:0:22::1/64", "MTU=1450", "IPMASQ=true"}},
		{"IPv6", []string{"fd00:5::/48"}, []string{
			"IPV6_NETWORK=fd00:5::/48", "IPV6_SUBNET=fd00:5:0:22::1/64", "MTU=1450", "IPMASQ=true"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			plan := agenttest.Plan(t, tt.pools...)
			var want string
			for _, prefix := range []string{"LENO_", "FLANNEL_"} {
				for _, line := range tt.want {
					want += prefix + line + "\n"
				}
			}
			data := state.FormatSubnetFile(plan, plan.Subnets(34), 1450, true)
			if diff := cmp.Diff(want, string(data)); diff != "" {
				t.Error(diff)
			}
			path := filepath.Join(t.TempDir(), "f.env")
			if err := state.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
			if got := state.SubnetInFile(path); got != plan.Subnets(34)[0] {
				t.Errorf("read back %s", got)
			}
		})
	}
}

func TestWriteFileAtomicKeepsTheOldFileWhenItFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := state.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	// Writing a file in place of a directory fails at the last step.
	other := filepath.Join(dir, "d")
	if err := os.MkdirAll(filepath.Join(other, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := state.WriteFile(other, []byte("new"), 0o644); err == nil {
		t.Error("a directory was replaced by a file")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 {
		t.Errorf("temporary files were left behind: %v", entries)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "old" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestSavedState(t *testing.T) {
	dir := t.TempDir()
	if got, err := state.Load(dir, "n"); err != nil || len(got.Subnets) != 0 {
		t.Errorf("no file: %+v, %v", got, err)
	}
	backend, err := registry.NewBackend("vxlan", []byte(`{"vni":1}`))
	if err != nil {
		t.Fatal(err)
	}
	want := state.Network{Version: 1, Network: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}, Session: "s",
		Pools: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}, Backend: backend}
	if err := state.Save(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := state.Load(dir, "n")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	for name, content := range map[string]string{"broken": "{", "version": `{"version":9,"network":"n"}`, "network": `{"version":1,"network":"m"}`} {
		t.Run(name, func(t *testing.T) {
			path := state.Path(dir, "n")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := state.Load(dir, "n"); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("error does not name the file: %v", err)
			}
		})
	}
}

func TestDataDirIsLocked(t *testing.T) {
	dir := t.TempDir()
	unlock, err := state.LockDataDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := state.LockDataDir(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second agent got the directory: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	unlock, err = state.LockDataDir(dir)
	if err != nil {
		t.Fatalf("not free again: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
}

func TestSavedNetworks(t *testing.T) {
	dir := t.TempDir()
	must(t, state.Save(dir, state.Network{Network: "n"}))
	must(t, state.Save(dir, state.Network{Network: "m"}))
	file, err := os.ReadFile(state.Path(dir, "n"))
	must(t, err)
	for name, data := range map[string]string{
		"n.json.bak": string(file), "backup.json": string(file), ".json": `{"version":1}`,
		"broken.json": "{", "notes.json": `{"text":"of somebody"}`, "empty.json": "",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
	}
	must(t, os.Mkdir(filepath.Join(dir, "folder.json"), 0o700))
	if got := state.Networks(dir); !slices.Equal(got, []string{"m", "n"}) {
		t.Errorf("%q", got)
	}
}

// TestSubnetFileElsewhere: an agent that starts with another subnet_file removes the former file, if that is a subnet
// file and belongs to no other network now.
func TestSubnetFileElsewhere(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	old := a.config.Networks[0].SubnetFile
	for _, tt := range []struct {
		name  string
		text  string // replaces what the agent wrote
		stays bool
	}{
		{name: "ours"},
		{name: "another program's", text: "PATH=/bin\n", stays: true},
	} {
		a.config.Networks[0].SubnetFile = old
		process := a.start()
		a.ready()
		must(t, process.stop())
		if tt.text != "" {
			must(t, os.WriteFile(old, []byte(tt.text), 0o644))
		}
		a.config.Networks[0].SubnetFile = old + ".new"
		process = a.start()
		a.ready()
		eventually(t, func() error {
			if !exists(old + ".new") {
				return errors.New("no new one")
			}
			if exists(old) != tt.stays {
				return fmt.Errorf("%s: the old one is there: %t", tt.name, exists(old))
			}
			return nil
		})
		must(t, process.stop())
	}
}
