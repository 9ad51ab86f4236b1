package state

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
)

// TestFileKeepsEveryChange: changes that are made at the same time do not undo each other.
func TestFileKeepsEveryChange(t *testing.T) {
	f := NewFile(t.TempDir(), "n")
	const changes = 20
	var all sync.WaitGroup
	for i := range changes {
		all.Go(func() {
			err := f.Update(func(before Network, err error) Network {
				if err != nil {
					t.Error(err)
				}
				before.Pools = append(before.Pools, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 24))
				return before
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	now, err := f.Load()
	if err != nil || len(now.Pools) != changes || now.Network != "n" {
		t.Errorf("%+v, %v", now, err)
	}
}

// TestFileIsWrittenOnlyIfItDiffers: an update without a change leaves the file alone.
func TestFileIsWrittenOnlyIfItDiffers(t *testing.T) {
	dir := t.TempDir()
	f := NewFile(dir, "n")
	written := func(session string) bool {
		t.Helper()
		past := time.Now().Add(-time.Hour).Truncate(time.Second)
		if err := os.Chtimes(Path(dir, "n"), past, past); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if err := f.Update(func(Network, error) Network {
			return Network{
				Subnets:  []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")},
				Session:  session,
				Record:   []byte(`{"a":1}`),
				Renewed:  time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
				Carriage: registry.Carriage{Backend: registry.Backend{Type: "vxlan", Object: []byte(`{"type":"vxlan"}`)}},
			}
		}); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(Path(dir, "n"))
		if err != nil {
			t.Fatal(err)
		}
		return !info.ModTime().Equal(past)
	}
	for _, tt := range []struct {
		name, session string
		want          bool
	}{
		{"a new file", "s", true},
		{"the same", "s", false},
		{"another session", "t", true},
	} {
		if got := written(tt.session); got != tt.want {
			t.Errorf("%s: written %t", tt.name, got)
		}
	}
}

// TestFileThatCannotBeUsed: the error is passed on, the file can be set aside for the operator, and an update replaces
// it.
func TestFileThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	f := NewFile(dir, "n")
	if err := f.SetAside(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	broken := func() {
		if err := os.WriteFile(Path(dir, "n"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	broken()
	if _, err := f.Load(); err == nil {
		t.Error("no error")
	}
	if err := f.Update(func(before Network, err error) Network {
		if err == nil || before.Network != "" {
			t.Errorf("%+v, %v", before, err)
		}
		return Network{Session: "s"}
	}); err != nil {
		t.Error(err)
	}
	if now, err := f.Load(); err != nil || now.Session != "s" {
		t.Errorf("%+v, %v", now, err)
	}
	broken()
	if err := f.SetAside(); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(Path(dir, "n") + BadSuffix); err != nil || string(data) != "{" {
		t.Errorf("set aside: %q, %v", data, err)
	}
	if now, err := f.Load(); err != nil || fmt.Sprint(now) != fmt.Sprint(Network{}) {
		t.Errorf("%+v, %v", now, err)
	}
}
