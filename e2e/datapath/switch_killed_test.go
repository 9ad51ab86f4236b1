package datapath

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// A killing is a step of a switch at which agents are killed.
type killing struct {
	step    string
	flag    string // of leno network switch, before reached is awaited
	reached func(w *testWorld, h *lab.Host) error
	then    string // flag of leno network switch, once the agents are started again
	all     bool   // kill the agents of all hosts
	core    bool   // also done by TestSwitchKilled
}

// leaseSays returns a step that is reached when a host's lease has a word.
func leaseSays(word string) func(w *testWorld, h *lab.Host) error {
	return func(w *testWorld, h *lab.Host) error {
		pair, _, err := w.Consul.Client().KV().Get(world.LeaseKey("default", w.Subnet(h, "default")), nil)
		if err != nil || pair == nil || !strings.Contains(string(pair.Value), word) {
			return fmt.Errorf("lease %+v, %v", pair, err)
		}
		return nil
	}
}

// allMoved is reached when the leases of all hosts say that they send over the new backend alone. A host ends the switch 2
// seconds later.
func allMoved(w *testWorld, _ *lab.Host) error {
	var errs []error
	for _, h := range w.Hosts {
		errs = append(errs, leaseSays(`"sends"`)(w, h))
	}
	return errors.Join(errs...)
}

func begun(w *testWorld, _ *lab.Host) error {
	if c, text := w.carriage(); c.Switch == nil {
		return errors.New(text)
	}
	return nil
}

func ended(w *testWorld, h *lab.Host) error {
	if begun(w, h) == nil {
		return errors.New("not ended")
	}
	return nil
}

// killings are the steps of a switch: it begins, hosts get both backends and say so, move their peers, and say that they
// have moved; it ends, and the old backend is removed. It can also be stopped and reversed.
var killings = []killing{
	{step: "begun", reached: begun},
	{step: "prepared", reached: leaseSays(`"next"`)},
	{step: "stopped", flag: "-stop", reached: leaseSays(`"next"`), then: "-continue"},
	{step: "moved", reached: leaseSays(`"sends"`), core: true},
	{step: "all moved", reached: allMoved},
	{step: "all moved, and every agent dies", reached: allMoved, all: true, core: true},
	{step: "reversed", flag: "-reverse", reached: begun},
	{step: "ended", reached: ended, all: true},
}

// killedAt switches the network to a backend, and kills agents at a step.
func (w *testWorld) killedAt(k killing, to target, victim *lab.Host) {
	w.T.Helper()
	from, _ := w.carriage()
	w.apply(to.kind, to.options)
	kind, option := to.kind, strings.Replace(to.options, " = ", `":`, 1)
	switch k.flag {
	case "":
	case "-reverse":
		w.Eventually("all hosts to have moved", func(context.Context) error { return allMoved(w, victim) })
		kind, option = from.Backend.Type, ""
		fallthrough
	default:
		w.turn(k.flag)
	}
	w.Eventually("the step "+k.step, func(context.Context) error { return k.reached(w, victim) })
	victims := []*lab.Host{victim}
	if k.all {
		victims = w.Hosts
	}
	for _, h := range victims {
		w.Must(h.KillAgent())
	}
	for _, h := range victims {
		w.Must(h.RestartAgent())
	}
	for _, h := range victims {
		w.Must(h.WaitReady(w.Ctx))
	}
	if k.then != "" {
		w.turn(k.then)
	}
	w.switched(kind, option)
}

// inTurn returns the host that ends switches, and another one the next time.
func (w *testWorld) inTurn(i int) *lab.Host {
	w.T.Helper()
	hosts := slices.SortedFunc(slices.Values(w.Hosts), func(a, b *lab.Host) int {
		return w.Subnet(a, "default").Addr().Compare(w.Subnet(b, "default").Addr())
	})
	return hosts[i%2]
}

// TestSwitchKilled kills agents while a switch between backends of the kernel is on its way. TestAllSwitchesKilled does it at
// every step.
func TestSwitchKilled(t *testing.T) {
	newWorld(t, lab.Options{Hosts: 3}).switchesKilled(slices.DeleteFunc(slices.Clone(killings), func(k killing) bool { return !k.core }))
}

// switchesKilled kills agents at the steps of switches, that of the host that ends switches and that of another one in turn.
// Each switch goes on, and no ping is lost.
func (w *testWorld) switchesKilled(at []killing) {
	w.T.Helper()
	w.StartNetwork("vxlan")
	pings := w.traffic(w.Containers, 0)
	targets := []target{{"host-gw", ""}, {"vxlan", "vni = 7"}}
	next := 0
	for i, k := range at {
		began := time.Now()
		w.killedAt(k, targets[next%2], w.inTurn(i))
		if k.flag != "-reverse" {
			next++
		}
		pings.flows()
		w.T.Logf("%s: %s", k.step, time.Since(began).Round(time.Millisecond))
	}
	// The next one dies while this one starts.
	w.apply("vxlan", "port = 4789")
	for round := range 6 {
		h := w.Hosts[round%len(w.Hosts)]
		w.Must(h.KillAgent())
		w.Must(h.RestartAgent())
	}
	for _, h := range w.Hosts {
		w.Must(h.WaitReady(w.Ctx))
	}
	w.switched("vxlan", `"port":4789`)
	pings.flows()
	pings.stop()
}
