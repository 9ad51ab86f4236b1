package agent

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// manyReaders is how many wait at once in tests, spread over all lists.
const manyReaders = 600

// within is how soon a change answers them all here, where hundreds of clients, the
// race detector and other tests share the processors; BenchmarkReaders measures it.
const within = time.Minute

// TestManyReaders: hundreds that wait, on every list, cost the store a watch for
// each list that has one, and each answers all of its readers soon after a
// change.
func TestManyReaders(t *testing.T) {
	store := memory.New()
	x := foreignNetwork(t, store)
	a, b := newHost(t, store, "a"), newHost(t, store, "b").start()
	a.quiet = true
	a.start()
	a.applies(a.subnet().String() + " <- b@" + b.subnet().String())
	a.ready()
	a.agent.board.linger = time.Millisecond
	lists := readings(a, b, x)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()

	watches := func() int {
		return a.registry.count("own WatchLeases") + a.registry.count("own WatchReservations") + a.registry.count("own Reservations")
	}
	before := watches()
	answered := make([]chan time.Time, len(lists))
	var all sync.WaitGroup
	for i, l := range lists {
		answered[i] = make(chan time.Time, manyReaders)
		_, index, err := l.read(ctx, a.client, api.Read{})
		if err != nil {
			t.Fatal(err)
		}
		for range manyReaders / len(lists) {
			all.Go(func() {
				// What another list's change moves of this one is waited over.
				for begun := index; ; {
					_, next, err := l.read(ctx, a.client, api.Read{Index: begun, Wait: 5 * time.Minute})
					if err != nil {
						return
					}
					answered[i] <- time.Now()
					begun = next
				}
			})
		}
	}
	a.readers(manyReaders)
	if asked := watches() - before; asked > 4*len(lists) {
		t.Errorf("%d readers made the store be asked %d times", manyReaders, asked)
	}
	for i, l := range lists {
		for len(answered[i]) > 0 {
			<-answered[i]
		}
		begun := time.Now()
		l.change(t)
		changed := time.Now() // the change itself may take the agent its time
		for n := range manyReaders / len(lists) {
			select {
			case at := <-answered[i]:
				if took := at.Sub(changed); took > within {
					t.Errorf("%s: a reader was answered %s after the change, which took %s", l.name, took, changed.Sub(begun))
				}
			case <-time.After(2 * time.Minute):
				t.Fatalf("%s: %d readers were answered", l.name, n)
			}
		}
	}
	leave()
	all.Wait()
	a.readers(0)
	eventually(t, func() error {
		a.agent.board.mu.Lock()
		defer a.agent.board.mu.Unlock()
		for name, v := range a.agent.board.views {
			if v.end != nil {
				return fmt.Errorf("%s is followed though nobody waits", name)
			}
		}
		return nil
	})
}
