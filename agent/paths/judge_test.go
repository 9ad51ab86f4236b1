package paths

import (
	"net/netip"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
)

var (
	peer4 = netip.MustParseAddr("10.5.1.0")
	peer6 = netip.MustParseAddr("fd00:5:1::")
)

// way returns the answers on the overlay's path to an address.
func way(to netip.Addr, sent, answered, largest int) api.ProbedWay {
	w := api.ProbedWay{Path: api.PathOverlay, To: to, MTU: 1450, Largest: largest}
	w.Small = api.ProbedSize{Bytes: small, Sent: sent, Answered: answered, AvgMS: 2}
	w.Full = api.ProbedSize{Bytes: 1450}
	if answered > 0 {
		w.Full.Sent = sent
	}
	if largest == 1450 {
		w.Full.Answered = sent
	}
	return w
}

func probed(ways ...api.ProbedWay) api.PeerProbe {
	out := api.PeerProbe{Node: "host-b", Ways: ways, Reached: true}
	for _, w := range ways {
		out.Reached = out.Reached && w.Largest > 0 // as probe.Run sets it
	}
	return out
}

// TestJudge: each row is probes one after the other, and the state after each of them, whatever the time of the probes.
func TestJudge(t *testing.T) {
	whole, lost := probed(way(peer4, 1, 1, 1450)), probed(way(peer4, 5, 0, 0))
	one := probed(way(peer4, 1, 0, 0))
	short := probed(way(peer4, 5, 5, 1400))
	unsearched := probed(way(peer4, 1, 1, small))
	some := probed(way(peer4, 5, 4, 1450))
	plain := probed(way(peer4, 1, 1, small))
	plain.Ways[0].Full = api.ProbedSize{Bytes: small}
	found := probed(way(peer4, 5, 5, 1450))
	found.Ways[0].Full.Answered = 0 // the search found that full packets pass
	single := probed(way(peer4, 1, 0, 0))
	single.Reached = true
	filtered := probed(way(peer4, 5, 0, 0))
	filtered.Reached = true
	filtered4 := probed(way(peer4, 1, 0, 0), way(peer6, 1, 1, 1450))
	filtered4.Reached = true
	only6 := probed(way(peer4, 1, 1, 1450), way(peer6, 5, 0, 0))
	notSent := probed(api.ProbedWay{Path: api.PathOverlay, To: peer4, NotProbed: "the probe ended"})
	outside := probed(way(peer4, 5, 0, 0))
	outside.Ways = append(outside.Ways, api.ProbedWay{Path: api.PathUnderlay, To: peer4})

	const reached, lossy, isShort, isLost = api.PathReached, api.PathLossy, api.PathShort, api.PathLost
	for name, row := range map[string]struct {
		probes []api.PeerProbe
		states []string
		reason string // at the end
		mtu    int
	}{
		"the first answer counts": {[]api.PeerProbe{whole}, []string{reached}, "", 1450},
		"a small packet alone":    {[]api.PeerProbe{plain}, []string{reached}, "", 0},
		"one packet is lost": {
			[]api.PeerProbe{whole, one, whole, one, whole}, []string{reached, reached, reached, reached, reached}, "", 1450},
		"a host that never answers": {
			[]api.PeerProbe{lost, lost, lost}, []string{"", "", isLost}, "no packet is answered", 0},
		"a path breaks and recovers": {
			[]api.PeerProbe{whole, lost, lost, lost, whole, whole, whole},
			[]string{reached, reached, reached, isLost, isLost, isLost, reached}, "", 1450},
		"full packets are lost, and the small ones between them are not": {
			[]api.PeerProbe{whole, short, short, short, plain, whole, whole, whole},
			[]string{reached, reached, reached, isShort, isShort, isShort, isShort, reached}, "", 1450},
		"the reason of a short path": {
			[]api.PeerProbe{short, short, short}, []string{"", "", isShort}, "IPv4 packets above 1400 bytes are lost", 1400},
		"some are lost": {
			[]api.PeerProbe{whole, some, some, some, some, some},
			[]string{reached, reached, reached, reached, reached, lossy}, "4 of the last 20 packets were lost", 1450},
		"only one family": {
			[]api.PeerProbe{only6, only6, only6}, []string{"", "", isLost}, "no IPv6 packet is answered", 1450},
		"its kernel drops echo requests": {
			[]api.PeerProbe{filtered, single, filtered, single, filtered, single, filtered},
			[]string{reached, reached, reached, reached, reached, reached, reached}, "", 0},
		"its kernel drops echo requests, and most probes are single packets": {
			[]api.PeerProbe{filtered, single, single, single, single, single, single},
			[]string{reached, reached, reached, reached, reached, reached, reached}, "", 0},
		"it drops those of one family, and no probe has more than one packet": {
			[]api.PeerProbe{filtered4, filtered4, filtered4, filtered4, filtered4, filtered4},
			[]string{reached, reached, reached, reached, reached, reached}, "", 1450},
		"the size that passes is searched for now and then": {
			[]api.PeerProbe{unsearched, unsearched, unsearched, short, unsearched},
			[]string{"", "", isShort, isShort, isShort}, "IPv4 packets above 1400 bytes are lost", 1400},
		"the size that passes was not searched for": {
			[]api.PeerProbe{unsearched, unsearched, unsearched}, []string{"", "", isShort}, "IPv4 packets of 1450 bytes are lost", 0},
		"it passes again, and is lost again": {
			[]api.PeerProbe{short, short, short, whole, unsearched},
			[]string{"", "", isShort, isShort, isShort}, "IPv4 packets of 1450 bytes are lost", 1400},
		"one packet is not tested outside": {
			[]api.PeerProbe{outside, outside, outside, one}, []string{"", "", isLost, isLost},
			"no packet is answered, also outside the overlay", 0},
		"full packets pass at a second try": {[]api.PeerProbe{found, found, found}, []string{reached, reached, reached}, "", 1450},
		"full packets are tested now and then": {
			[]api.PeerProbe{whole, short, plain, short, plain, short},
			[]string{reached, reached, reached, reached, reached, isShort}, "IPv4 packets above 1400 bytes are lost", 1400},
		"the host is down": {
			[]api.PeerProbe{outside, outside, outside}, []string{"", "", isLost}, "no packet is answered, also outside the overlay", 0},
		"nothing was sent": {[]api.PeerProbe{whole, notSent, notSent, notSent}, []string{reached, reached, reached, reached}, "", 1450},
	} {
		for _, pause := range []time.Duration{longestPause, -5 * time.Hour, 5 * time.Hour} {
			var p path
			now := time.Now()
			for i, result := range row.probes {
				now = now.Add(pause)
				before := p.shown.State
				changed := p.judge(result, now)
				if got, want := p.shown.State, row.states[i]; got != want {
					t.Fatalf("%s, every %s: probe %d: state %q, want %q; %+v", name, pause, i, got, want, p.shown)
				}
				if want := before != p.shown.State; changed != want || changed && !p.shown.Since.Equal(now) {
					t.Errorf("%s: probe %d: changed %t, since %v", name, i, changed, p.shown.Since)
				}
			}
			if p.shown.Reason != row.reason || p.shown.MTU != row.mtu {
				t.Errorf("%s: reason %q and MTU %d, want %q and %d", name, p.shown.Reason, p.shown.MTU, row.reason, row.mtu)
			}
			if row.reason == "" && row.probes[0].Ways[0].Largest == 0 && p.isSuspicious() {
				t.Errorf("%s: the path is suspicious", name)
			}
		}
	}
}

// TestJudgeForgetsLoss: a path that was lossy is reached again soon after the last loss, and not while a packet is lost
// now and then.
func TestJudgeForgetsLoss(t *testing.T) {
	var p path
	now := time.Now()
	lossy := probed(way(peer4, 5, 3, 1450))
	for range 6 {
		p.judge(lossy, now)
	}
	if p.shown.State != api.PathLossy || p.shown.Loss != 0.4 {
		t.Fatalf("%+v", p.shown)
	}
	for range 3 {
		for range 8 {
			p.judge(probed(way(peer4, 5, 5, 1450)), now)
		}
		if p.judge(probed(way(peer4, 5, 4, 1450)), now); p.shown.State != api.PathLossy {
			t.Errorf("one of 45 packets is lost: %+v", p.shown)
		}
	}
	for i := range 9 {
		p.judge(probed(way(peer4, 5, 5, 1450)), now)
		if i == 8 && (p.shown.State != api.PathReached || p.shown.Loss != 0 || p.isSuspicious()) {
			t.Errorf("after %d whole probes: %+v", i+1, p.shown)
		}
	}
}

// TestWorst: the paths that are not in order are listed by state, then by loss, then by name.
func TestWorst(t *testing.T) {
	var peers []*peer
	for _, p := range []struct {
		node, state string
		loss        float64
	}{
		{"f", api.PathLossy, 0.2}, {"a", api.PathLossy, 0.15}, {"b", api.PathLossy, 0.9}, {"c", api.PathReached, 0.1},
		{"g", api.PathShort, 0}, {"e", api.PathLossy, 0.2}, {"z", api.PathLost, 1}, {"d", "", 0},
	} {
		peers = append(peers, &peer{Peer: api.Peer{Node: p.node}, path: path{shown: api.PeerPath{State: p.state, Loss: p.loss}}})
	}
	var got string
	for _, p := range worst(peers) {
		got += p.Node
	}
	if got != "zgbefa" {
		t.Errorf("%s", got)
	}
}
