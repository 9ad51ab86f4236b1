// Package migrate tests the migration from flannel to leno as the documentation describes it, with
// real hosts, real stores and real packets.
package migrate

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

var binary string

func TestMain(m *testing.M) {
	os.Exit(lab.RunWithLeno(&binary, m.Run))
}

type world struct {
	*lab.Lab
	t   *testing.T
	ctx context.Context
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// newWorld lays out hosts, a server of the store, and flannel's state in the kernel of each host, with
// a container behind it.
func newWorld(t *testing.T, o lab.Options) (*world, []*lab.Container) {
	t.Helper()
	w := newLab(t, o)
	containers, err := layFlannel(w.ctx, w.Hosts)
	w.must(err)
	return w, containers
}

// newLab lays out hosts and a server of the store.
func newLab(t *testing.T, o lab.Options) *world {
	t.Helper()
	o.Leno = binary
	l, err := lab.New(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute) // after the wait for other labs
	t.Cleanup(cancel)
	t.Cleanup(func() {
		for _, h := range l.Hosts {
			if p := h.Agent(); p != nil && t.Failed() {
				lines := strings.Split(strings.TrimSpace(p.Output()), "\n")
				t.Logf("agent of %s:\n%s", h.Name, strings.Join(lines[max(0, len(lines)-15):], "\n"))
			}
		}
		if err := l.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	return &world{Lab: l, t: t, ctx: ctx}
}

// startEchoes starts pings from each of three containers to the next one, once that has answered.
func (w *world) startEchoes(containers []*lab.Container, every time.Duration) (streams []*lab.Echoes) {
	w.t.Helper()
	for i, from := range containers {
		to := containers[(i+1)%len(containers)].Addrs[0]
		s, err := from.StartEchoes(w.ctx, to, every)
		w.must(err)
		w.must(s.WaitAnswers(w.ctx, 5))
		streams = append(streams, s)
	}
	return streams
}

func others(of int) []int {
	return slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == of })
}

// keptSubnets checks that every host has the same subnet in leno as in flannel.
func (w *world) keptSubnets() {
	w.t.Helper()
	out, err := w.Hosts[1].Leno(w.ctx, "lease", "list", "-format=json")
	w.must(err)
	var list api.LeaseList
	w.must(json.Unmarshal([]byte(out), &list))
	got := map[string]netip.Prefix{}
	for _, lease := range list.Leases {
		got[lease.Node] = lease.Subnet
	}
	for i, h := range w.Hosts {
		if got[h.Name] != theirs(i).subnet {
			w.t.Errorf("%s has %s, and had %s", h.Name, got[h.Name], theirs(i).subnet)
		}
	}
}
