// Package traffic watches packets and routes while a test disturbs the hosts of a lab.
package traffic

import (
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// Watch starts pings between all containers of the world in a ring and watches the routes of every host. The returned
// function ends both and checks that no ping and no route was lost. Watch starts once the first ping of each pair is
// answered: until then, the kernel may drop packets because neighbour discovery is not over.
func Watch(w *world.World) (check func()) {
	w.T.Helper()
	streams := map[string]*lab.Echoes{}
	routes := map[string]func() []string{}
	for i, from := range w.Containers {
		to := w.Containers[(i+1)%len(w.Containers)]
		streams[from.Name+" to "+to.Name] = Start(w, from, to, 20*time.Millisecond)
	}
	for _, h := range w.Hosts {
		routes[h.Name] = w.RouteEvents(h)
	}
	return func() {
		w.T.Helper()
		var stops errgroup.Group
		for name, s := range streams {
			stops.Go(func() error {
				if err := s.WaitAnswers(w.Ctx, 10); err != nil {
					return err
				}
				result, err := s.Stop()
				w.T.Logf("%s: %d pings, %d lost", name, result.Sent, result.Lost())
				if result.Lost() != 0 {
					w.T.Errorf("%s: %s", name, result.Losses())
				}
				return err
			})
		}
		w.Must(stops.Wait())
		for name, deleted := range routes {
			if gone := deleted(); len(gone) != 0 {
				w.T.Errorf("%s: routes were deleted: %q", name, gone)
			}
		}
	}
}

// Start blocks until a container has an answer from the IPv4 address of another one, and then starts pings to it.
func Start(w *world.World, from, to *lab.Container, every time.Duration) *lab.Echoes {
	w.T.Helper()
	w.Linked([]*lab.Container{from, to})
	s, err := from.StartEchoes(w.Ctx, to.Addrs[0], every)
	w.Must(err)
	return s
}
