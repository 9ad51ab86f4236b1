package store

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// TestLeaseRevoked revokes the lease of a live host: the host takes another subnet, and the other
// hosts' routes follow, including those to its new containers. A record that is merely deleted is
// restored with the same subnet.
func TestLeaseRevoked(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.StartNetwork("vxlan")
	a, b := w.Hosts[0], w.Hosts[1]
	subnet := w.Subnet(b, "default")
	_, err := w.Consul.Client().KV().Delete(world.LeaseKey("default", subnet), nil)
	w.Must(err)
	w.Eventually("the lease to be taken back", func(context.Context) error {
		if now := w.Session(b); now == "" {
			return fmt.Errorf("no lease of %s", subnet)
		}
		return nil
	})
	// A host that learns of the deletion late had two peers before it as well.
	again, _, err := w.Consul.Client().KV().Get(world.LeaseKey("default", subnet), nil)
	w.Must(err)
	for _, h := range w.Hosts {
		w.Eventually(h.Name+" to know the lease", func(ctx context.Context) error {
			var known api.LeaseList
			if err := world.GetJSON(ctx, h, "/v1/network/default/leases?memory=true", &known); err != nil {
				return err
			}
			if !slices.ContainsFunc(known.Leases, func(l api.Lease) bool { return l.Subnet == subnet && l.ModifyIndex >= again.ModifyIndex }) {
				return fmt.Errorf("%+v, not %s of version %d", known.Leases, subnet, again.ModifyIndex)
			}
			return nil
		})
	}
	w.Settle("default")
	w.Linked(w.Containers)
	w.Matrix()
	if got := w.Subnet(b, "default"); got != subnet {
		t.Errorf("subnet %s, before %s", got, subnet)
	}
	w.WaitHealth(b, http.StatusOK)

	w.reserveUnderTraffic(a, b)
	_, err = a.Leno(w.Ctx, "lease", "revoke", "default", subnet.String())
	w.Must(err)
	var now netip.Prefix
	w.Eventually("another subnet", func(context.Context) error {
		if now = w.Subnet(b, "default"); now == subnet {
			return fmt.Errorf("still %s", now)
		}
		return nil
	})
	for _, h := range w.Hosts {
		if h == b {
			continue
		}
		w.Eventually(h.Name+" to follow", func(context.Context) error {
			routes := strings.Join(w.Routes(h), "\n")
			if strings.Contains(routes, subnet.String()) || !strings.Contains(routes, now.String()) {
				return fmt.Errorf("from %s to %s: %s", subnet, now, routes)
			}
			return nil
		})
	}
	w.Containers = slices.DeleteFunc(w.Containers, func(c *lab.Container) bool {
		if c.Host == b {
			w.Must(c.Remove(w.Ctx))
		}
		return c.Host == b
	})
	w.Container(b, "default")
	w.Matrix()
	w.WaitHealth(b, http.StatusOK)
	w.WaitLog(b, "lease was revoked", "containers must be restarted")
}

// reserveUnderTraffic reserves b's subnet for another host and removes the reservation. Without
// -force it is refused with b's name. Neither command affects a lease, a route or a packet.
func (w *testWorld) reserveUnderTraffic(a, b *lab.Host) {
	w.T.Helper()
	subnet, session := w.Subnet(b, "default"), w.Session(b)
	deleted := w.RouteEvents(a)
	add := []string{"reservation", "add", "-node=host-y", "default", subnet.String()}
	if out, err := a.Leno(w.Ctx, add...); err == nil || !strings.Contains(err.Error(), b.Name) {
		w.T.Errorf("reserved the subnet of a living host: %s, %v", out, err)
	}
	for _, args := range [][]string{append(add, "-force"), {"reservation", "remove", "default", subnet.String()}} {
		_, err := a.Leno(w.Ctx, args...)
		w.Must(err)
		w.Matrix()
		if now := w.Session(b); now != session || w.Subnet(b, "default") != subnet {
			w.T.Errorf("%v: %s under session %q, before %s under %q", args, w.Subnet(b, "default"), now, subnet, session)
		}
	}
	if gone := deleted(); len(gone) != 0 {
		w.T.Errorf("routes were deleted: %q", gone)
	}
}
