package memory_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/internal/testkit/seed"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

const (
	churnHosts = 200
	churnSlots = 64
	churnFor   = 10 * time.Minute
	churnHold  = time.Minute
	passEvery  = 30 * time.Second // how often every other live host removes leases that lapsed beyond hold
)

// churn is a network in which hosts come and go as on a spot market.
type churn struct {
	*testing.T
	store *memory.Store
	net   registry.Network
	ends  time.Time

	mu      sync.Mutex
	holder  map[uint64]string    // live hosts
	lapsing map[uint64]time.Time // when the session of the host that died there ends

	full, taken, back, restarted int
}

// TestChurn: 200 hosts come and go over 64 slots; for two thirds of the time there are more hosts than slots. A host is
// refused only while every slot is held, or kept for a host that fell silent less than hold and two passes of the live
// hosts ago. A host that is back within hold gets the slot it had. The test controls the clock.
func TestChurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		n := define(t, store.Client())
		n.Plan[0].Min, n.Plan[0].Max = netip.MustParseAddr("10.5.1.0"), netip.MustParseAddr(fmt.Sprintf("10.5.%d.0", churnSlots))
		if err := store.Client().PutNetwork(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		if got := n.Plan.Capacity(); got != churnSlots {
			t.Fatalf("%d slots", got)
		}
		c := &churn{T: t, store: store, net: n, ends: time.Now().Add(churnFor), holder: map[uint64]string{}, lapsing: map[uint64]time.Time{}}
		var all sync.WaitGroup
		random := seed.Rand(t)
		for i := range churnHosts {
			rnd := rand.New(rand.NewPCG(uint64(i), random.Uint64())) // of each host, because they run at the same time
			all.Go(func() { c.host(i, rnd) })
		}
		all.Wait()
		t.Logf("refused %d times; %d got what lapsed past hold, %d were back within it, %d before their session ended", c.full, c.taken, c.back, c.restarted)
		if c.full == 0 || c.taken == 0 || c.back == 0 || c.restarted == 0 {
			t.Error("not everything has happened")
		}
	})
}

// host comes and goes until the time is over. No two hosts ever act at the same instant, because their pauses are
// random to the nanosecond.
func (c *churn) host(i int, rnd *rand.Rand) {
	about := func(d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(2 * d))) }
	claim := claim(c.net)
	claim.Node, claim.NodeID = fmt.Sprintf("host-%d", i), fmt.Sprintf("id-%d", i)
	claim.PublicIPs = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}
	claim.Hold = churnHold
	var had registry.Lease
	var kept time.Time // had is kept until then at least
	away := about(6 * time.Minute)
	for {
		time.Sleep(away)
		if time.Now().After(c.ends) {
			return
		}
		client := c.store.Client()
		if rnd.IntN(4) == 0 {
			claim.Session, claim.Prefer = "", netip.Prefix{} // its disk was replaced
		}
		l, ok := c.come(client, claim, func() time.Duration { return about(15 * time.Second) })
		if !ok {
			away = about(6 * time.Minute)
			continue
		}
		if back := time.Now().Before(kept); back && l.Slot != had.Slot {
			c.Errorf("%s is back before %s on slot %d, it had %d", claim.Node, kept, l.Slot, had.Slot)
		} else {
			c.enter(l, back)
		}
		renewed := c.live(client, l, about(3*time.Minute), about)
		had, kept, claim.Session, claim.Prefer = l, time.Time{}, l.Session, l.Subnet()
		lapses := renewed.Add(2 * claim.TTL)
		switch dice := rnd.IntN(20); {
		case dice < 12:
			c.leave(l, lapses)
			kept, away = lapses.Add(churnHold), about(6*time.Minute)
			if rnd.IntN(4) == 0 {
				away = about(time.Minute)
			}
		case dice < 17:
			if err := client.Release(c.Context(), l); err != nil {
				c.Error(err)
			}
			c.leave(l, time.Time{})
			away = about(6 * time.Minute)
		default:
			c.leave(l, lapses)
			kept, away = lapses.Add(churnHold), about(time.Second)
		}
	}
}

// come tries several times to get a lease.
func (c *churn) come(client *memory.Client, claim registry.Claim, pause func() time.Duration) (registry.Lease, bool) {
	for range 8 {
		l, err := client.Acquire(c.Context(), c.net, claim)
		switch {
		case err == nil:
			return l, true
		case !errors.Is(err, registry.ErrNetworkFull):
			c.Errorf("%s: %v", claim.Node, err)
			return l, false
		}
		c.refused(claim, err)
		time.Sleep(pause())
	}
	return registry.Lease{}, false
}

// refused checks "the network is full" against the content of the store.
func (c *churn) refused(claim registry.Claim, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full++
	first, last := c.net.Plan.Range()
	for slot := first; slot <= last; slot++ {
		subnet := c.net.Plan.Subnets(slot)[0]
		_, session, there := c.store.Get(memory.Prefix + "/leases/default/" + registry.SubnetKey(subnet))
		lapsed := time.Since(c.lapsing[slot])
		if !there || session == "" && lapsed > churnHold+2*passEvery {
			c.Errorf("%s: %v; but %s: record %t, silent for %s", claim.Node, err, subnet, there, lapsed)
		}
	}
}

// live renews the lease for a while and removes lapsed leases, as agents do. It returns the time of the last renewal.
func (c *churn) live(client *memory.Client, l registry.Lease, d time.Duration, about func(time.Duration) time.Duration) time.Time {
	renewed := time.Now()
	ends, pass := renewed.Add(d), renewed
	if l.Slot%2 == 0 {
		pass = ends
	}
	for time.Now().Before(ends) {
		time.Sleep(about(10 * time.Second))
		if err := client.Renew(c.Context(), l); err != nil {
			c.Errorf("%s: %v", l.Node, err)
		}
		renewed = time.Now()
		if renewed.Before(pass) {
			continue
		}
		pass = renewed.Add(passEvery - 20*time.Second)
		set, _, err := client.WatchLeases(c.Context(), c.net, 0)
		if err != nil {
			c.Error(err)
		}
		for _, o := range set.Leases {
			if !o.Held() && o.Lapsed >= churnHold {
				if err := client.Expire(c.Context(), o); err != nil {
					c.Errorf("expire %s: %v", o.Subnet(), err)
				}
			}
		}
	}
	return renewed
}

func (c *churn) enter(l registry.Lease, back bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if other, ok := c.holder[l.Slot]; ok {
		c.Errorf("%s got %s, which %s holds", l.Node, l.Subnet(), other)
	}
	switch since, ok := c.lapsing[l.Slot]; {
	case back && time.Now().Before(since):
		c.restarted++
	case back:
		c.back++
	case ok && time.Since(since) >= churnHold:
		c.taken++
	}
	c.holder[l.Slot] = l.Node
	delete(c.lapsing, l.Slot)
}

// leave records that the host is gone and when its session ends, the zero time when it has ended already.
func (c *churn) leave(l registry.Lease, lapses time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.holder, l.Slot)
	delete(c.lapsing, l.Slot)
	if !lapses.IsZero() {
		c.lapsing[l.Slot] = lapses
	}
}
