package paths

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/api"
)

// watched is a hostWatch with peers and a clock.
type watched struct {
	hostWatch
	now   time.Time
	peers map[netip.Prefix]*peer
}

func watchHosts(count int) *watched {
	w := &watched{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), peers: map[netip.Prefix]*peer{}}
	for i := range count {
		w.add(i)
	}
	return w
}

// add adds a healthy host.
func (w *watched) add(i int) {
	w.peers[subnetOf(i)] = &peer{Peer: api.Peer{Node: fmt.Sprintf("host-%04d", i), Member: api.MemberAlive},
		summary: api.HostSummary{Version: "1", Health: api.Passing}}
}

func subnetOf(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i / 256), byte(i), 0}), 24)
}

// pass lets time pass and returns the messages of the events.
func (w *watched) pass(d time.Duration) (messages []string) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(longestPause) {
		for _, e := range w.follow(w.now, w.peers) {
			messages = append(messages, e.Severity+": "+e.Message)
		}
	}
	return messages
}

// TestHostEvents: a host has an event when it is worse for a while, when it is better for longer, and for a new version.
func TestHostEvents(t *testing.T) {
	w := watchHosts(3)
	p := w.peers[subnetOf(1)]
	for _, step := range []struct {
		what string
		do   func()
		d    time.Duration
		want []string
	}{
		{"healthy", func() {}, time.Hour, nil},
		{"critical for a moment", func() { p.summary.Health, p.summary.Reason = api.Critical, "lease: lost" }, 30 * time.Second, nil},
		{"healthy again", func() { p.summary.Health, p.summary.Reason = api.Passing, "" }, time.Hour, nil},
		{"critical", func() { p.summary.Health, p.summary.Reason = api.Critical, "lease: lost" }, time.Hour,
			[]string{"warning: host-0001 became critical: lease: lost"}},
		{"healthy for a moment", func() { p.summary.Health, p.summary.Reason = api.Passing, "" }, 100 * time.Second, nil},
		{"only a warning", func() { p.summary.Health, p.summary.Reason = api.Warning, "paths: x" }, time.Hour,
			[]string{"warning: host-0001 reported a warning: paths: x"}},
		{"silent", func() { p.summary = api.HostSummary{} }, time.Hour, nil},
		{"recovered", func() { p.summary = api.HostSummary{Version: "1", Health: api.Passing} }, time.Hour,
			[]string{"info: host-0001 recovered"}},
		{"version", func() { p.summary.Version = "2" }, time.Hour, []string{"info: host-0001 changed its version: 1 to 2"}},
		{"failed", func() { p.Member = api.MemberFailed }, time.Hour, []string{"warning: Consul reports host-0001 as failed"}},
		{"Consul does not answer", func() { p.Member = "" }, time.Hour, nil},
		{"alive", func() { p.Member = api.MemberAlive }, time.Hour, []string{"info: Consul reports host-0001 as alive again"}},
		{"another host has the subnet", func() { p.Node, p.summary.Version = "other", "3" }, time.Hour, nil},
		{"a broken host joins", func() { w.add(3); w.peers[subnetOf(3)].summary.Health = api.Warning }, time.Hour,
			[]string{"warning: host-0003 reported a warning"}},
	} {
		step.do()
		if got := w.pass(step.d); !slices.Equal(got, step.want) {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
}

// TestManyHosts: half of a thousand hosts break, one after the other, and all of them again and again.
func TestManyHosts(t *testing.T) {
	const count, down = 1000, 512
	w := watchHosts(count)
	w.pass(time.Minute)
	for i := range down {
		w.peers[subnetOf(i)].summary.Health = api.Critical
	}
	if got, want := w.pass(time.Hour), "warning: 512 hosts (host-0000, host-0001, host-0002 and 509 more) became critical"; len(got) != 1 || got[0] != want {
		t.Errorf("at once: %q", got)
	}
	again := &watched{now: w.now, peers: w.peers}
	if got := again.pass(time.Hour); len(got) != 0 {
		t.Errorf("after a restart of the agent: %q", got)
	}
	events := 0
	for i := range down {
		w.peers[subnetOf(i)].summary.Health = api.Passing
		events += len(w.pass(longestPause))
	}
	events += len(w.pass(time.Hour))
	if most := int(down*longestPause/batch) + mostReported; events == 0 || events > most {
		t.Errorf("%d events of hosts that recover in the course of half an hour, at most %d wanted", events, most)
	}
	events = 0
	for i := range 60 {
		for subnet := range w.peers {
			w.peers[subnet].summary.Health = []string{api.Critical, api.Passing}[i%2]
		}
		events += len(w.pass(2 * time.Minute))
	}
	if events > 2 {
		t.Errorf("%d events of hosts that flap", events)
	}
}

// TestHostEventsOfNetwork: what the other hosts say becomes events of the network.
func TestHostEventsOfNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 2)
		s.summary = api.HostSummary{Version: "1", Health: api.Passing}
		s.follow()
		s.run(func() {
			time.Sleep(2 * time.Minute)
			s.summary.Health, s.summary.Reason = api.Critical, "lease: lost"
			s.follow()
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			all, _, _ := s.events.After(0, "n")
			var got []string
			for _, e := range all {
				if e.Kind == api.EventPeer && e.Fields["change"] == "critical" {
					got = append(got, e.Fields["host"]+" "+e.Message)
				}
			}
			if want := "host-0000 host-0000 became critical: lease: lost\nhost-0001 host-0001 became critical: lease: lost"; strings.Join(got, "\n") != want {
				t.Errorf("events %q", got)
			}
		})
	})
}
