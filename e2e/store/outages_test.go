package store

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/traffic"
)

// TestQuorumLost stops two of three Consul servers, so that the third responds but cannot commit:
// neither a packet nor a lease is lost.
func TestQuorumLost(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2, Servers: 3})
	w.StartNetwork("vxlan")
	h := w.Hosts[0]
	subnet := w.Subnet(h, "default")
	w.WaitHealth(h, http.StatusOK)
	whole := traffic.Watch(w.World)
	lost := w.Servers[1:]
	for _, server := range lost {
		w.Must(server.Kill())
	}
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusTooManyRequests, "there is no certain answer")
	}
	if status, _, err := h.Get(w.Ctx, "/readyz"); err != nil || status != http.StatusOK {
		t.Errorf("readyz %d without a quorum, %v", status, err)
	}
	w.Must(lab.StartAll(w.Ctx, lost))
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}
	whole()
	if got := w.Subnet(h, "default"); got != subnet {
		t.Errorf("subnet %s, before %s", got, subnet)
	}
	w.Eventually("all leases to be held", func(context.Context) error {
		for _, l := range w.Leases(h, "default").Leases {
			if !l.Held {
				return fmt.Errorf("%+v", l)
			}
		}
		return nil
	})
}
