package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// TestRememberAndAsk checks that remembering rules and a request to the agent, which take the same two locks, never
// wait for each other.
func TestRememberAndAsk(t *testing.T) {
	simulated(t, func(t *testing.T) {
		h := newHost(t, memory.New(), "a").start()
		h.ready()
		a := h.agent
		asked := make(chan struct{})
		a.env.Rules.Keeper.Remember(a.env.Datapaths.Backends, a.settings.get().DataDir, func(name string) (config.Network, bool) {
			go func() {
				defer close(asked)
				_ = a.self()
			}()
			select {
			case <-asked:
			case <-time.After(2 * time.Minute):
				t.Error("a request to the agent waits for the rules to be remembered")
				return config.Network{}, false
			}
			return a.settings.wanted(name)
		})
		<-asked
	})
}

// TestFirewallFlapping checks that rules that another program changes again and again are named in health and reported
// as events.
func TestFirewallFlapping(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.config.Networks[0].Forward = true
		a.config.Firewall.Resync = 20 * time.Millisecond
		a.wall.report = firewall.Report{Healed: []string{"no jump in FORWARD"}}
		a.start()
		a.check(health.Firewall, api.Warning, "changed by another program again and again", "no jump in FORWARD (")
		eventually(t, func() error {
			list, err := a.client.Events(t.Context(), "")
			if err != nil {
				return err
			}
			messages := map[bool]bool{} // by whether they say that the rules are changed again and again
			for _, e := range list.Events {
				if e.Kind == api.EventDrift && e.Severity == api.Warning && strings.Contains(e.Message, "no jump in FORWARD") {
					messages[strings.Contains(e.Message, "again and again")] = true
				}
			}
			if len(messages) != 2 {
				return fmt.Errorf("events %+v", list.Events)
			}
			return nil
		})
	})
}

// TestFirewallExpects: after a restart, even without its state, the first network that is ready does not remove the
// rules of the other one. If the other one never becomes ready, the first does not wait for ever.
func TestFirewallExpects(t *testing.T) {
	for _, lost := range []string{"n", "both", "both, without blocks"} {
		subtest(t, lost, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			a.config.Networks = append(a.config.Networks, a.second())
			a.start().ready()
			must(t, a.stop())
			began := len(a.wall.names())
			must(t, os.Remove(state.Path(a.config.DataDir, "n")))
			if lost != "n" {
				must(t, os.RemoveAll(a.config.DataDir))
			}
			if lost == "both, without blocks" {
				a.config.Networks, a.config.WatchNetworks, a.config.AllowedNetworks = nil, true, []string{"*"}
			}
			a.remains = datapath.KernelState{Routes: 1, Refuses: true}
			a.start()
			a.more("writes of the firewall", began, func() int { return len(a.wall.names()) })
			a.ready()
			for _, names := range a.wall.names()[began:] {
				if names != "m n" {
					t.Errorf("firewall of %q alone", names)
				}
			}
		})
	}
}
