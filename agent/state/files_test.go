package state

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/lenonet/leno/registry"
)

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// TestLoadNodeID: every file that knows the id has to be lost for it to be lost.
func TestLoadNodeID(t *testing.T) {
	const id, other = "6f1c9d1e-5c3e-4d0b-8a55-0f6f5a6f3d2a", "0f1c9d1e-5c3e-4d0b-8a55-0f6f5a6f3d2b"
	for _, tt := range []struct {
		name  string
		file  string // "-" for none
		saved string // node_id in the state file of network n, "-" for no file
		want  string
		bad   bool // the file is renamed
	}{
		{"as written", id + "\n", "-", id, false},
		{"its own file counts first", id + "\n", other, id, false},
		{"a new host", "-", "-", "", false},
		{"gone", "-", id, id, false},
		{"empty", "", id, id, false},
		{"cut short", id[:17], id, id, true},
		{"zeros after a crash", strings.Repeat("\x00", 37), id, id, true},
		{"broken, and nothing else tells", "not an id\n", "-", "", true},
		{"gone, and the state file is of an older leno", "-", "", "", false},
		{"gone, and the state file has none either", "-", "not an id", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.file != "-" {
				must(t, os.WriteFile(NodeIDPath(dir), []byte(tt.file), 0o644))
			}
			if tt.saved != "-" {
				must(t, Save(dir, Network{Network: "n", NodeID: tt.saved}))
			}
			got, err := LoadNodeID(dir, hclog.NewNullLogger())
			if err != nil || got != tt.want {
				t.Errorf("%q, %v, want %q", got, err, tt.want)
			}
			if bad := exists(NodeIDPath(dir) + ".bad"); bad != tt.bad {
				t.Errorf("renamed %t, want %t", bad, tt.bad)
			}
			if tt.want == "" {
				return
			}
			must(t, os.RemoveAll(Path(dir, "n")))
			if again, err := LoadNodeID(dir, hclog.NewNullLogger()); err != nil || again != tt.want {
				t.Errorf("the file now has %q, %v", again, err)
			}
		})
	}
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "node-id"), 0o755))
	if _, err := LoadNodeID(dir, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "node-id") {
		t.Errorf("error does not name the file: %v", err)
	}
}

// TestDeletionFiles: files of deletions that are too old go when another one is written.
func TestDeletionFiles(t *testing.T) {
	dir := t.TempDir()
	ago := time.Now().Add(-registry.DeletionKept)
	must(t, SaveDeletion(dir, Deletion{Deletion: registry.Deletion{Network: "old", Time: time.Now()}}))
	must(t, os.Chtimes(DeletionPath(dir, "old"), ago, ago))
	must(t, SaveDeletion(dir, Deletion{Deletion: registry.Deletion{Network: "behind", Time: ago}})) // by the clock of another host
	must(t, SaveDeletion(dir, Deletion{Deletion: registry.Deletion{Network: "new", Time: time.Now().Add(-time.Hour)}}))
	for name, want := range map[string]bool{"old": false, "behind": true, "new": true} {
		d, err := LoadDeletion(dir, name)
		must(t, err)
		if (d != nil) != want {
			t.Errorf("%s: %+v", name, d)
		}
	}
	must(t, RemoveDeletion(dir, "behind"))
	must(t, RemoveDeletion(dir, "new"))
	must(t, RemoveDeletion(dir, "new"))
	if exists(filepath.Dir(DeletionPath(dir, "new"))) {
		t.Error("the empty directory stays")
	}
}

// TestFormerSubnetsFile: the file is bounded, survives what cannot be read, and goes
// with its last entry.
func TestFormerSubnetsFile(t *testing.T) {
	t.Parallel()
	f := NewFormerSubnets(t.TempDir())
	subnet := netip.MustParsePrefix("10.5.3.0/24")
	must(t, f.Drop("none"))
	for i := range 3 * maxFormerSubnets {
		must(t, f.Put(fmt.Sprintf("n%03d", i), subnet))
	}
	subnets, err := f.Load()
	must(t, err)
	if _, last := subnets[fmt.Sprintf("n%03d", 3*maxFormerSubnets-1)]; len(subnets) != maxFormerSubnets || !last {
		t.Errorf("%d networks, the last one %t", len(subnets), last)
	}
	for _, text := range []string{"", "{", "null", `{"version":9,"networks":{"n":{"subnet":"10.5.3.0/24"}}}`, `{"version":1}`} {
		must(t, os.WriteFile(f.path, []byte(text), 0o600))
		if got := f.Subnet("n"); got.IsValid() {
			t.Errorf("%q: %s", text, got)
		}
		must(t, f.Put("n", subnet))
		if got := f.Subnet("n"); got != subnet {
			t.Errorf("after %q: %s", text, got)
		}
	}
	must(t, f.Drop("n"))
	if exists(f.path) {
		t.Error("an empty file stays")
	}
	if Networks(filepath.Dir(f.path)) != nil || strings.HasSuffix(f.path, ".json") {
		t.Error("the file may be taken for a network's")
	}
}

// TestConfigFiles: the list is written only when it changes, and there is none before the first file.
func TestConfigFiles(t *testing.T) {
	dir := t.TempDir()
	must(t, SaveConfigFiles(dir, nil))
	if exists(ConfigFilesPath(dir)) || len(LoadConfigFiles(dir)) != 0 {
		t.Error("an empty list was written")
	}
	files := []string{"/etc/leno.d/a.hcl", "/etc/leno.d/b.hcl"}
	must(t, SaveConfigFiles(dir, files))
	before, err := os.Stat(ConfigFilesPath(dir))
	must(t, err)
	must(t, SaveConfigFiles(dir, files))
	if after, err := os.Stat(ConfigFilesPath(dir)); err != nil || !os.SameFile(before, after) {
		t.Errorf("the same list was written again: %v", err)
	}
	got := LoadConfigFiles(dir)
	for _, file := range files {
		if !slices.Contains(got, file) {
			t.Errorf("%s is not in %q", file, got)
		}
	}
	must(t, SaveConfigFiles(dir, nil))
	if slices.Contains(LoadConfigFiles(dir), files[0]) {
		t.Error("a file stays in the list")
	}
}

func TestIsSubnetFile(t *testing.T) {
	for text, want := range map[string]bool{
		"LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\nFLANNEL_SUBNET=10.5.34.1/24\n": true,
		"LENO_IPV6_SUBNET=fd00:5::1/64\n\nLENO_MTU=1450":                                    true,
		"FLANNEL_NETWORK=10.6.0.0/16\nFLANNEL_SUBNET=10.6.1.1/24\n":                         false,
		"LENO_TOKEN=secret\nLENO_ADDRESS=http://127.0.0.1:1\n":                              false,
		"LENO_SUBNET=10.5.34.1/24\nDOCKER_OPTS=--bip\n":                                     false,
		"": false,
	} {
		if got := IsSubnetFile([]byte(text)); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}
