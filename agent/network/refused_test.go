package network

import (
	"testing"
	"testing/synctest"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// TestRefusedClaimUsesNewAddress: a host whose claim is refused claims again with the address that it has by then. A host
// with the name of another one is refused.
func TestRefusedClaimUsesNewAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a := newMember(t, store, "a").start()
		a.ready()
		b := newMember(t, store, "b")
		own := b.place
		b.place = a.place
		b.start()
		b.check(health.Conflict, api.Critical, `"a"`, `"b"`, "192.0.2.97")
		b.check(health.Lease, api.Critical, "id-a")
		b.mu.Lock()
		b.place = own
		b.mu.Unlock()
		b.ready()
		b.check(health.Conflict, api.Passing)

		c := newMember(t, store, "c")
		c.deps.Identity.SetNode("a")
		c.start()
		c.check(health.Conflict, api.Critical, `"a"`, "192.0.2.97", "192.0.2.99")
		c.check(health.Lease, api.Critical, "id-a")
	})
}
