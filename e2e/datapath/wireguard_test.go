package datapath

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
)

// TestWireGuardKeys checks that a host whose private key was lost takes another one, with the same subnet, and that its
// peers follow; and that a host that becomes a copy of another takes another key, while the other goes on.
func TestWireGuardKeys(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	w.StartNetwork("wireguard")
	w.Matrix()
	a, b, c := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	flows := func() {
		t.Helper()
		w.Eventually("packets to flow", func(context.Context) error {
			return errors.Join(w.Pinged(w.Containers[0], w.Containers[1].Addrs[0]), w.Pinged(w.Containers[1], w.Containers[0].Addrs[1]))
		})
	}
	key := func(h *lab.Host) string { return filepath.Join(h.DataDir(), "default", "wireguard.key") }
	read := func(h *lab.Host) string {
		t.Helper()
		text, err := os.ReadFile(key(h))
		w.Must(err)
		return string(text)
	}
	if info, err := os.Stat(key(a)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}

	before, subnet := read(a), w.Subnet(a, "default")
	w.Must(a.KillAgent())
	w.Must(os.Remove(key(a)))
	w.Must(a.RestartAgent())
	w.Must(a.WaitReady(w.Ctx))
	flows()
	if read(a) == before {
		t.Error("the key is the same")
	}
	if now := w.Subnet(a, "default"); now != subnet {
		t.Errorf("subnet %s, before %s", now, subnet)
	}
	w.Matrix()

	// The third host becomes a copy of the second.
	w.Must(c.StopAgent(w.Ctx))
	w.Must(os.WriteFile(key(c), []byte(read(b)), 0o600))
	w.Must(c.RestartAgent())
	w.Must(c.WaitReady(w.Ctx))
	w.Eventually("the copied key to be replaced", func(context.Context) error {
		if read(c) == read(b) {
			return errors.New("it is the same")
		}
		return nil
	})
	if log := c.Agent().Output(); !strings.Contains(log, "private key was that of another host") {
		t.Error("the log does not say why the key was replaced")
	}
	flows()
	w.Eventually("packets to the copy to flow", func(context.Context) error { return w.Pinged(w.Containers[0], w.Containers[2].Addrs[0]) })
	w.Matrix()
}
