package network

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// frame matches a stack frame in a file of this package or one below it, except tests.
var frame = regexp.MustCompile(`\n(\S+)\(.*\n\t\S*agent/network/[a-z_/]*[a-z]\.go:`)

// bubble matches the part of a stack that names the bubble of its goroutine.
var bubble = regexp.MustCompile(`, synctest bubble \d+\]`)

// parts returns the goroutines of this test that run a network on some host, by id, each with the outermost function.
func parts() map[string]string {
	synctest.Wait()
	text := make([]byte, 1<<24)
	stacks := strings.Split(string(text[:runtime.Stack(text, true)]), "\n\n")
	out := map[string]string{}
	for _, stack := range stacks {
		frames := slices.DeleteFunc(frame.FindAllStringSubmatch(stack, -1), func(f []string) bool { return strings.Contains(f[0], "_test.go") })
		if id := strings.Fields(stack); len(frames) > 0 && bubble.FindString(stack) == bubble.FindString(stacks[0]) {
			out[id[1]] = frames[len(frames)-1][1]
		}
	}
	return out
}

// mostParts is the maximum number of goroutines of one network on one host.
const mostParts = 9

// TestChangeWithinARound: a definition with the same plan takes effect while the lease, the peers and the datapath go on:
// the same goroutines run, and the lease is claimed again only if peers must know something else of this host. Another plan
// needs a new round, and so does a backend that must be removed before the next one can be used.
func TestChangeWithinARound(t *testing.T) {
	colour := func(n *registry.Network, colour string) {
		n.Backend = agenttest.Backend(t, "recorder", fmt.Sprintf(`{"colour":%q}`, colour))
	}
	for _, tt := range []struct {
		name   string
		change func(n *registry.Network)
		claims bool // the record of the lease changes
		rounds bool // a new round begins
		want   string
	}{
		{"the same definition", func(*registry.Network) {}, false, false, `recorder {} [10.5.0.0/22]: `},
		{"an option", func(n *registry.Network) { colour(n, "blue") }, false, false, `recorder {"colour":"blue"} [10.5.0.0/22]: `},
		{"a switch", func(n *registry.Network) { n.Switch = &registry.Switch{To: agenttest.Backend(t, "other", "")} },
			true, false, `other {} [10.5.0.0/22]: `},
		{"another backend", func(n *registry.Network) { n.Backend = agenttest.Backend(t, "other", "") }, true, true,
			`other {} [10.5.0.0/22]: `},
		{"another pool", func(n *registry.Network) { n.Plan = agenttest.Plan(t, "10.5.0.0/21") }, false, true,
			`recorder {} [10.5.0.0/21]: `},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			store := memory.New()
			a := newMember(t, store, "a").start()
			a.ready()
			b := newMember(t, store, "b").start()
			b.ready()
			a.applies(a.with(b))
			b.stop()
			lease, _ := a.run.Lease()
			before, claims := parts(), a.registry.Count("own Acquire")
			if len(before) == 0 || len(before) > mostParts {
				t.Errorf("%d goroutines: %q", len(before), slices.Sorted(maps.Values(before)))
			}
			defined := a.define(tt.change)
			agenttest.Eventually(t, func() error {
				s := a.run.Status()
				if story := a.kernel.story(); s.Local.ModifyIndex != defined.ModifyIndex || !slices.Contains(story, tt.want+a.with(b)) {
					return fmt.Errorf("version %d is applied, of %d: %q", s.Local.ModifyIndex, defined.ModifyIndex, story)
				}
				return nil
			})
			after := parts()
			if same := maps.Equal(before, after); same == tt.rounds || len(after) > mostParts {
				t.Errorf("%d goroutines: %q, before %q", len(after), after, before)
			}
			now, _ := a.run.Lease()
			if n := a.registry.Count("own Acquire") - claims; !tt.rounds && (n > 0) != tt.claims || now.Session != lease.Session || now.Slot != lease.Slot {
				t.Errorf("claimed %d times: %+v, before %+v", n, now, lease)
			}
			if zero := slices.Contains(a.kernel.states(), "zero"); zero != (tt.name == "another backend") {
				t.Errorf("taken down: %t", zero)
			}
			a.check(health.Network, api.Passing, "defined")
		})
	}
}

// TestChangeToATakenPort: a definition that needs a port of another network of this host for a moment stays without
// effect until it names another port, and packets keep flowing.
func TestChangeToATakenPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a")
		kind := a.kernel.kind("recorder")
		kind.Port = func(o json.RawMessage) backend.Port { return backend.Port{Number: parseKeyed(o).Port, Socket: "udp"} }
		a.deps.Datapaths.Backends["recorder"] = kind
		must(t, a.deps.Claims.take("other", hostClaim{ports: []backend.Port{{Number: 7, Socket: "udp"}}}))
		a.start().ready()
		lease, _ := a.run.Lease()
		port := func(p int) {
			a.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "recorder", keyed{Port: p}.json()) })
		}
		port(6)
		a.applies(a.with())
		port(7)
		a.check(health.Network, api.Warning, `it needs udp port 7, which network "other" uses`)
		port(8)
		a.check(health.Network, api.Passing, "defined")
		agenttest.Eventually(t, func() error {
			story := a.kernel.story()
			if want := fmt.Sprintf("recorder %s [10.5.0.0/22]: %s", keyed{Port: 8}.json(), a.with()); story[len(story)-1] != want {
				return fmt.Errorf("%q", story)
			}
			return nil
		})
		if now, _ := a.run.Lease(); now.Session != lease.Session || slices.Contains(a.kernel.states(), "zero") {
			t.Errorf("%+v, before %+v: %q", now, lease, a.kernel.states())
		}
	})
}
