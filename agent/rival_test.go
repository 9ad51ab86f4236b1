package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/faulty"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// addresses returns the addresses to which a peer's packets were sent, in order: the first public address in each
// state.
func (r *recorder) addresses(node string) []netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []netip.Addr
	for _, s := range r.states {
		for _, p := range s.Peers {
			if p.Node == node && (len(out) == 0 || out[len(out)-1] != p.PublicIPs[0]) {
				out = append(out, p.PublicIPs[0])
			}
		}
	}
	return out
}

// TestCopiedDataDir starts a copy of a running host, such as a cloned machine. Both say so, and neither the original
// nor its peers notice anything else.
func TestCopiedDataDir(t *testing.T) {
	for _, name := range []string{"a", "b"} { // the name of the copy
		t.Run("named "+name, func(t *testing.T) {
			store := memory.New()
			a, c := newHost(t, store, "a").slow().start(), newHost(t, store, "c").start()
			a.ready()
			subnet := a.subnet()
			c.applies(fmt.Sprintf("%s <- a@%s", c.subnet(), subnet))
			b := newHost(t, store, "b").slow()
			b.config.NodeName = name
			copyDataDir(b, a)
			b.start()
			b.check(health.Conflict, api.Critical, `"a" (192.0.2.97`, fmt.Sprintf("%q (192.0.2.98", name), "copied")
			a.check(health.Conflict, api.Critical, "192.0.2.97", "192.0.2.98", "copied")
			b.check(health.Lease, api.Critical)
			a.check(health.Lease, api.Passing)
			if got := b.recorder.last(); got != "nothing" {
				t.Errorf("the copy applied %s", got)
			}
			if got := a.recorder.all(); a.subnet() != subnet || len(got) > 2 {
				t.Errorf("the original was disturbed: %q", got)
			}

			// When the original has ended, the copy is as good as it was.
			lease, _ := mustRunner(t, a).Lease()
			if got := c.recorder.addresses("a"); len(got) != 1 || got[0] != a.place.Addrs[0] {
				t.Errorf("a peer sent to %v", got)
			}
			must(t, a.stop())
			store.EndSession(lease.Session)
			b.ready()
			b.check(health.Conflict, api.Passing)
			if b.subnet() != subnet {
				t.Errorf("the copy has %s, the original had %s", b.subnet(), subnet)
			}
		})
	}
}

// TestMovedWhileStopped: a host comes back with another address, and perhaps another name, while its session lives. No
// running host answers for its record.
func TestMovedWhileStopped(t *testing.T) {
	for _, name := range []string{"a", "renamed"} {
		t.Run("as "+name, func(t *testing.T) {
			t.Parallel()
			store := memory.New()
			a, c := newHost(t, store, "a").slow().start(), newHost(t, store, "c").start()
			a.ready()
			subnet := a.subnet()
			lease, _ := mustRunner(t, a).Lease()
			c.applies(fmt.Sprintf("%s <- a@%s", c.subnet(), subnet))
			must(t, a.stop())
			moved := netip.MustParseAddr("192.0.2.200")
			a.config.NodeName = name
			a.move([]netip.Addr{moved}, nil)
			a.start().ready()
			again, _ := mustRunner(t, a).Lease()
			if again.Subnet() != subnet || again.Session != lease.Session || len(again.PublicIPs) != 1 {
				t.Errorf("was %+v, is %+v", lease, again)
			}
			eventually(t, func() error {
				if got := c.recorder.addresses(name); len(got) == 0 || got[len(got)-1] != moved {
					return fmt.Errorf("a peer sends to %v", got)
				}
				return nil
			})
			a.check(health.Conflict, api.Passing)
		})
	}
}

// TestDisplaced: while a host could not be reached, a copy of it took its record and ended. The host takes the record
// back.
func TestDisplaced(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a").slow().start()
	a.ready()
	lease, _ := mustRunner(t, a).Lease()
	own, _, _ := a.store.Get(leaseKey(lease.Subnet()))
	lease.PublicIPs = []netip.Addr{netip.MustParseAddr("192.0.2.200")}
	value, err := registry.FormatLease(lease)
	must(t, err)
	a.store.Put(leaseKey(lease.Subnet()), value)
	a.check(health.Conflict, api.Critical, "192.0.2.97", "192.0.2.200", "copied")
	eventually(t, func() error {
		if now, _, _ := a.store.Get(leaseKey(lease.Subnet())); string(now) != string(own) {
			return fmt.Errorf("record %s", now)
		}
		return nil
	})
	a.check(health.Lease, api.Passing)
	if got := a.recorder.all(); len(got) != 1 {
		t.Errorf("the datapath was disturbed: %q", got)
	}
}

// TestStoreSetBack: a host took the slot of another host after the store was backed up. After a restore, the store says
// again that the slot is the other host's.
func TestStoreSetBack(t *testing.T) {
	for _, tt := range []struct {
		name string
		// then is called after the restore.
		then func(t *testing.T, a *host, b registry.Lease, other *memory.Client)
		keep bool
		exit bool
	}{
		{name: "the other is no more", keep: true,
			then: func(_ *testing.T, a *host, b registry.Lease, _ *memory.Client) { a.store.EndSession(b.Session) }},
		{name: "the other has another slot", keep: true, then: func(t *testing.T, _ *host, b registry.Lease, other *memory.Client) {
			n, err := other.Network(t.Context(), "n")
			must(t, err)
			_, err = other.Acquire(t.Context(), n, registry.Claim{Node: b.Node, NodeID: b.NodeID, PublicIPs: b.PublicIPs, MTU: 1450,
				Backend: b.Backend, Session: b.Session, Prefer: n.Plan.Subnets(b.Slot%3 + 1)[0], Running: true, TTL: time.Hour, Hold: time.Hour})
			must(t, err)
		}},
		{name: "the other lives", then: func(*testing.T, *host, registry.Lease, *memory.Client) {}},
		{name: "the other lives, exit", exit: true, then: func(*testing.T, *host, registry.Lease, *memory.Client) {}},
		{name: "the other changed its record since", then: func(t *testing.T, a *host, b registry.Lease, _ *memory.Client) {
			b.MTU = 1400
			value, err := registry.FormatLease(b)
			must(t, err)
			a.store.Put(leaseKey(b.Subnet()), value)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := newHost(t, memory.New(), "a")
			a.config.Lease.TTL, a.config.Lease.RenewMargin = time.Second, 900*time.Millisecond
			if tt.exit {
				a.config.Lease.OnLost = config.OnLostExit
			}
			n, err := definition.FromBlock(a.config.Networks[0])
			must(t, err)
			other := a.store.Client()
			must(t, other.PutNetwork(t.Context(), n))
			b := a.rival("b", netip.MustParsePrefix("10.5.2.0/24"))
			backup := a.store.Backup()
			must(t, other.Release(t.Context(), b))
			must(t, state.WriteFile(a.config.Networks[0].SubnetFile, []byte("LENO_SUBNET=10.5.2.1/24\n"), 0o644))
			a.start().ready()
			subnet := a.subnet()
			if subnet != b.Subnet() {
				t.Fatalf("subnet %s, want %s", subnet, b.Subnet())
			}
			a.store.Restore(backup)
			a.check(health.Lease, api.Warning, subnet.String(), `"b" (192.0.2.98`, "set back")
			tt.then(t, a, b, other)
			if tt.exit {
				var lost *lease.LostError
				if err := a.wait(); !errors.As(err, &lost) || lost.Old != subnet.String() {
					t.Errorf("ended with %v", err)
				}
				return
			}
			if tt.keep {
				a.check(health.Lease, api.Passing, subnet.String()+" is held")
			} else {
				a.check(health.Lease, api.Passing, "it was "+subnet.String()+" until", "restarted")
			}
			if now := a.subnet(); (now == subnet) != tt.keep {
				t.Errorf("subnet %s, before %s", now, subnet)
			}
			if _, session, _ := a.store.Get(leaseKey(b.Subnet())); (session == b.Session) == tt.keep {
				t.Errorf("the slot is held by %q, the other's session is %q", session, b.Session)
			}
			for _, state := range a.recorder.all() {
				if tt.keep && !strings.HasPrefix(state, subnet.String()) {
					t.Errorf("state %q was applied although the host kept its subnet", state)
				}
			}
		})
	}
}

// TestSubnetFileFollowsALostSubnet: the subnet file names the new subnet even while the datapath fails, because the
// containers on the former subnet may be what keeps the datapath from being complete.
func TestSubnetFileFollowsALostSubnet(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	before := a.subnet()
	a.recorder.setFail(errors.New("put route: the bridge is in the way"))
	must(t, a.client.RevokeLease(t.Context(), "n", before))
	eventually(t, func() error {
		if got := state.SubnetInFile(a.config.Networks[0].SubnetFile); got == before || got != a.subnet() {
			return fmt.Errorf("the file says %s, the lease is %s", got, a.subnet())
		}
		return nil
	})
	a.check(health.Device, api.Critical, "in the way")
}

// closing counts how often idle connections to the store were closed.
type closing struct {
	*faulty.Registry
	times atomic.Int32
}

func (c *closing) Close() error { c.times.Add(1); return nil }

// TestMovedDialsAnew: a host whose address has changed closes its connections to the store, because those from the
// former address are useless.
func TestMovedDialsAnew(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	c := &closing{Registry: a.registry}
	a.catalog = c
	a.start().ready()
	a.kick()
	acquired := a.registry.Count("own Acquire")
	a.move([]netip.Addr{netip.MustParseAddr("192.0.2.200")}, nil)
	a.kick()
	a.more("claims", acquired, func() int { return a.registry.Count("own Acquire") })
	if n := c.times.Load(); n != 1 {
		t.Errorf("dropped %d times", n)
	}
}
