package hello_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/hello"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/hellotest"
)

var a, b, stranger = netip.MustParseAddr("10.5.1.0"), netip.MustParseAddr("10.5.2.0"), netip.MustParseAddr("10.5.3.0")

const pause = 10 * time.Second

// pair is two hosts on a wire.
type pair struct {
	t        *testing.T
	wire     hellotest.Wire
	speakers map[netip.Addr]*hello.Speaker
}

func newPair(t *testing.T) *pair {
	p := &pair{t: t, speakers: map[netip.Addr]*hello.Speaker{}}
	p.start(a)
	p.start(b)
	return p
}

func other(host netip.Addr) netip.Addr {
	if host == a {
		return b
	}
	return a
}

// start starts a host, or starts it again.
func (p *pair) start(host netip.Addr) {
	p.speakers[host] = hello.NewSpeaker(p.wire.Listen, 1000)
	p.follow(host, api.HostSummary{Version: "of " + host.String()})
}

func (p *pair) follow(host netip.Addr, s api.HostSummary) {
	p.t.Helper()
	err := p.speakers[host].Follow(p.t.Context(), hello.State{Own: []netip.Addr{host}, Peers: []netip.Addr{other(host)},
		Pause: pause, Summary: s})
	if err != nil {
		p.t.Fatal(err)
	}
}

// exchange lets both hosts ask n times, 4 s apart.
func (p *pair) exchange(n int) {
	for range n {
		p.speakers[a].Ask(b)
		p.speakers[b].Ask(a)
		time.Sleep(4 * time.Second)
	}
}

// loss returns what a host knows: the loss to the other one and from it, - for unknown.
func (p *pair) loss(host netip.Addr) string {
	v := p.speakers[host].Of(other(host))
	return "to " + show(v.ToPeer) + ", from " + show(v.FromPeer)
}

func show(loss *float64) string {
	if loss == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *loss)
}

func (p *pair) expect(host netip.Addr, want string) {
	p.t.Helper()
	if got := p.loss(host); got != want {
		p.t.Errorf("%s knows: %s, want %s", host, got, want)
	}
}

// TestDirections: what is lost in one direction is known on both sides, and its end too.
func TestDirections(t *testing.T) {
	loses := func(lost netip.Addr) func(from, to netip.Addr) bool {
		return func(from, _ netip.Addr) bool { return from == lost }
	}
	count := 0
	for name, row := range map[string]struct {
		lose func(from, to netip.Addr) bool
		a, b string
	}{
		"none":        {nil, "to 0.00, from 0.00", "to 0.00, from 0.00"},
		"all of a":    {loses(a), "to 1.00, from 0.00", "to -, from 1.00"},
		"all of b":    {loses(b), "to -, from 1.00", "to 1.00, from 0.00"},
		"all of both": {func(_, _ netip.Addr) bool { return true }, "to -, from 1.00", "to -, from 1.00"},
		"every fourth of a": {func(from, _ netip.Addr) bool {
			if from == a {
				count++
			}
			return from == a && count%4 == 0
		}, "to 0.25, from 0.00", "to 0.00, from 0.25"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t)
				p.expect(a, "to -, from -")
				p.exchange(6)
				p.expect(a, "to 0.00, from 0.00")
				p.wire.Lose = row.lose
				p.exchange(20)
				p.expect(a, row.a)
				p.expect(b, row.b)
				p.wire.Lose = nil
				p.exchange(3)
				p.speakers[a].Forget(b)
				p.speakers[b].Forget(a)
				p.exchange(4)
				p.expect(a, "to 0.00, from 0.00")
				p.expect(b, "to 0.00, from 0.00")
			})
		})
	}
}

// TestRestart: a process that starts again is known at once, and one that starts while it cannot be heard finds out.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.exchange(6)
		p.start(b)
		p.exchange(4)
		p.expect(a, "to 0.00, from 0.00")
		p.expect(b, "to 0.00, from 0.00")

		p.wire.Lose = func(from, _ netip.Addr) bool { return from == b }
		p.start(b)
		p.exchange(10)
		p.expect(a, "to -, from 1.00")
		p.expect(b, "to 1.00, from 0.00")
		p.wire.Lose = nil
		p.exchange(2)
		p.start(a)
		p.exchange(10)
		p.expect(a, "to 0.00, from 0.00")
	})
}

// TestAgentWithout: of a peer without this protocol, nothing is known.
func TestAgentWithout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		if err := p.speakers[b].Follow(t.Context(), hello.State{}); err != nil {
			t.Fatal(err)
		}
		p.exchange(20)
		p.expect(a, "to -, from -")
	})
}

// TestSummary: a peer has the summary after the first messages and after each change, although the one with it was lost,
// and messages without a change have none.
func TestSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		version := func() string { return p.speakers[a].Of(b).Summary.Version }
		p.exchange(2)
		if version() != "of 10.5.2.0" {
			t.Fatalf("the version is %q", version())
		}
		p.wire.Packets()
		p.exchange(5)
		for _, packet := range p.wire.Packets() {
			if len(packet.Message) != hello.MessageLen-48 {
				t.Errorf("a message of %d bytes without a change", len(packet.Message))
			}
		}
		if at := p.speakers[a].Of(b).Summary.At; time.Since(at) > 5*time.Second {
			t.Errorf("the summary was confirmed at %v, and now is %v", at, time.Now())
		}
		lost := false
		p.wire.Lose = func(from, _ netip.Addr) bool { was := lost; lost = true; return from == b && !was }
		p.follow(b, api.HostSummary{Version: "changed"})
		p.speakers[b].Ask(a)
		before := p.speakers[a].Of(b).Summary
		if before.Version == "changed" {
			t.Fatal("the message was not lost")
		}
		p.exchange(12)
		if version() != "changed" {
			t.Errorf("the version is %q", version())
		}
		p.start(a)
		p.exchange(12)
		if version() != "changed" {
			t.Errorf("after a restart, the version is %q", version())
		}
	})
}

// question returns a message that asks, as the process with the nonce sends it.
func question(nonce, echo uint64, seq, last uint32) []byte {
	m := make([]byte, hello.MessageLen-48)
	m[0], m[1] = 1, 1
	binary.BigEndian.PutUint32(m[4:], seq)
	binary.BigEndian.PutUint64(m[8:], nonce)
	binary.BigEndian.PutUint64(m[16:], echo)
	binary.BigEndian.PutUint32(m[24:], last)
	return m
}

// TestBadInput: what a stranger, a liar or another time sends changes nothing and is answered by nothing that is longer.
func TestBadInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.exchange(6)
		packets := p.wire.Packets()
		nonces := map[netip.Addr]uint64{}
		for _, packet := range packets {
			nonces[packet.From] = binary.BigEndian.Uint64(packet.Message[8:])
		}
		for name, row := range map[string]struct {
			from    netip.Addr
			message []byte
			answers int
		}{
			"a stranger":                    {stranger, question(nonces[b], nonces[a], 1000, 1), 0},
			"another process":               {b, question(77, 0, 1, 0), 1},
			"an answer for another one":     {b, func() []byte { m := question(77, 78, 1, 1); m[1] = 0; return m }(), 0},
			"our own message":               {b, question(nonces[a], nonces[b], 1000, 1), 0},
			"more received than was sent":   {b, question(nonces[b], nonces[a], 1000, 1000), 0},
			"an old version":                {b, append([]byte{0}, question(nonces[b], nonces[a], 1000, 1)[1:]...), 0},
			"a message for the second time": {b, packets[len(packets)-1].Message, 0},
			"a summary that is none":        {b, append(question(77, 0, 1, 0), "{{"...), 1},
		} {
			p.wire.Packets()
			before := p.speakers[a].Of(b)
			from := row.from
			if name == "a message for the second time" {
				from = packets[len(packets)-1].From
			}
			to := other(from)
			if from == stranger {
				to = a
			}
			p.wire.Inject(hellotest.Packet{From: from, To: to, Message: row.message})
			sent := p.wire.Packets()
			if len(sent) != row.answers {
				t.Errorf("%s: %d answers, want %d", name, len(sent), row.answers)
			}
			for _, answer := range sent {
				if len(answer.Message) > len(row.message) {
					t.Errorf("%s: %d bytes are answered by %d", name, len(row.message), len(answer.Message))
				}
			}
			if after := p.speakers[a].Of(b); p.loss(a) != "to 0.00, from 0.00" || after.Summary.Version != before.Summary.Version {
				t.Errorf("%s: %s, %+v", name, p.loss(a), after)
			}
		}
		p.exchange(6)
		p.expect(a, "to 0.00, from 0.00")
		p.expect(b, "to 0.00, from 0.00")
	})
}

// TestRareMessages: hosts of a large network, which ask each other once in 45 minutes, know that nothing is lost.
func TestRareMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pause = 45 * time.Minute
		p := newPair(t)
		for host, s := range p.speakers {
			err := s.Follow(t.Context(), hello.State{Own: []netip.Addr{host}, Peers: []netip.Addr{other(host)}, Pause: pause})
			if err != nil {
				t.Fatal(err)
			}
		}
		for range 8 {
			p.speakers[a].Ask(b)
			p.speakers[b].Ask(a)
			time.Sleep(pause)
		}
		p.expect(a, "to 0.00, from 0.00")
		p.expect(b, "to 0.00, from 0.00")
	})
}

// TestWrongProcess: a message of a process that does not live, or of a host that had the address for some time, hides the
// process that lives for a moment at most.
func TestWrongProcess(t *testing.T) {
	for name, happens := range map[string]func(p *pair){
		"a message is forged while the peer is silent": func(p *pair) {
			p.wire.Lose = func(_, _ netip.Addr) bool { return true }
			p.exchange(8)
			p.wire.Lose = nil
			p.wire.Inject(hellotest.Packet{From: b, To: a, Message: question(77, 0, 1, 0)})
		},
		"a message of a process long ago arrives": func(p *pair) {
			packets := p.wire.Packets()
			old := packets[slices.IndexFunc(packets, func(x hellotest.Packet) bool { return x.From == b && x.Message[1]&1 == 1 })]
			for range 2 {
				p.start(b)
				p.exchange(6)
			}
			p.wire.Inject(old)
		},
		"another host has the address for some time": func(p *pair) {
			first := p.speakers[b]
			p.start(b)
			p.exchange(6)
			if err := p.speakers[b].Follow(p.t.Context(), hello.State{}); err != nil {
				p.t.Fatal(err)
			}
			p.speakers[b] = first
			if err := first.Follow(p.t.Context(), hello.State{}); err != nil { // closes its socket, which the wire has given away
				p.t.Fatal(err)
			}
			p.follow(b, api.HostSummary{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t)
				p.exchange(6)
				happens(p)
				p.follow(b, api.HostSummary{Version: "later"})
				p.exchange(20)
				p.expect(a, "to 0.00, from 0.00")
				p.expect(b, "to 0.00, from 0.00")
				if got := p.speakers[a].Of(b).Summary.Version; got != "later" {
					t.Errorf("the version is %q", got)
				}
			})
		})
	}
}

// TestSummaryArrives: a host that did not get a changed summary does not count as one that has it.
func TestSummaryArrives(t *testing.T) {
	for name, happens := range map[string]func(p *pair){
		"a question with room for it is forged": func(p *pair) {
			long := append(question(77, 0, 1, 0), make([]byte, 1000)...)
			p.wire.Inject(hellotest.Packet{From: b, To: a, Message: long})
		},
		"the peer starts again after it was told": func(p *pair) {
			p.speakers[a].Ask(b)
			p.start(b)
			p.speakers[b].Ask(a)
			time.Sleep(4 * time.Second)
			p.speakers[b].Ask(a)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t)
				p.exchange(12)
				p.follow(a, api.HostSummary{Version: "changed"})
				happens(p)
				p.exchange(20)
				if got := p.speakers[b].Of(a); got.Summary.Version != "changed" {
					t.Errorf("b has the summary %+v, and news: %t", got.Summary, got.HasNews)
				}
			})
		})
	}
}

// TestFlood: a peer that sends a thousand messages at once is answered a few times, and its next message in time counts.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.exchange(2)
		before := p.wire.Sent(a)
		for range 1000 {
			p.speakers[b].Ask(a)
		}
		if sent := p.wire.Sent(a) - before; sent > 25*hello.MessageLen {
			t.Errorf("%d bytes were sent", sent)
		}
		time.Sleep(time.Minute)
		p.exchange(30)
		p.expect(a, "to 0.00, from 0.00")
	})
}

// TestFloodInItsName: messages that others send from the address of a peer change nothing of what is known of it.
func TestFloodInItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.speakers[b].Ask(a)
		question := p.wire.Packets()[0]
		p.exchange(20)
		copy(question.Message[8:], "stranger") // its nonce
		for range 100 {
			for range 40 {
				p.wire.Inject(question)
				p.wire.Inject(hellotest.Packet{From: b, To: a, Message: []byte("junk")})
			}
			p.exchange(1)
		}
		p.expect(a, "to 0.00, from 0.00")
	})
}

// TestFloodOfMany: the answers to all peers together are bounded, and questions without an answer are no loss.
func TestFloodOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wire hellotest.Wire
		var peers []netip.Addr
		var speakers []*hello.Speaker
		for i := range 200 {
			peers = append(peers, netip.AddrFrom4([4]byte{10, 5, 100, byte(i)}))
		}
		one := hello.NewSpeaker(wire.Listen, 1000)
		follow := func(s *hello.Speaker, own netip.Addr, peers ...netip.Addr) {
			if err := s.Follow(t.Context(), hello.State{Own: []netip.Addr{own}, Peers: peers, Pause: pause}); err != nil {
				t.Fatal(err)
			}
		}
		follow(one, a, peers...)
		for _, addr := range peers {
			s := hello.NewSpeaker(wire.Listen, 1000)
			follow(s, addr, a)
			speakers = append(speakers, s)
		}
		for range 20 {
			for _, s := range speakers {
				s.Ask(a)
			}
		}
		const answers, summaries = 300, 30 * 1000
		if sent := wire.Sent(a); sent > answers*hello.MessageLen+summaries {
			t.Errorf("%d bytes were sent", sent)
		}
		time.Sleep(time.Minute)
		for range 12 {
			for _, s := range speakers {
				s.Ask(a)
			}
			time.Sleep(8 * time.Second)
		}
		for i, s := range speakers {
			if v := s.Of(a); show(v.ToPeer) != "0.00" || show(v.FromPeer) != "0.00" {
				t.Fatalf("peer %d: loss to %s, from %s", i, show(v.ToPeer), show(v.FromPeer))
			}
		}
	})
}

// TestFloodOfOthers: questions that others send in the names of many peers do not take the answers of those that have
// proven themselves.
func TestFloodOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		peers := []netip.Addr{b}
		for i := range 100 {
			peers = append(peers, netip.AddrFrom4([4]byte{10, 5, 100, byte(i)}))
		}
		if err := p.speakers[a].Follow(t.Context(), hello.State{Own: []netip.Addr{a}, Peers: peers, Pause: pause}); err != nil {
			t.Fatal(err)
		}
		p.exchange(6)
		for i := range 30 {
			asked := time.Now()
			for j := range 1000 { // 250 a second
				from := peers[1+j%100]
				p.wire.Inject(hellotest.Packet{From: from, To: a, Message: question(uint64(100+j), 0, uint32(i+1), 0)})
				if j < 100 && j%40 == 0 {
					p.speakers[b].Ask(a)
				}
				time.Sleep(4 * time.Millisecond)
			}
			if p.speakers[b].Of(a).Arrived.Before(asked) {
				t.Fatalf("in round %d, b got no answer", i)
			}
		}
	})
}

// TestLate: a message that counted as lost counts as received when it arrives after all.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.exchange(6)
		p.wire.Packets()
		p.wire.Lose = func(from, _ netip.Addr) bool { return from == b }
		p.speakers[b].Ask(a)
		late := p.wire.Packets()[0]
		p.wire.Lose = nil
		p.exchange(2)
		if p.loss(a) == "to 0.00, from 0.00" {
			t.Fatal("nothing was lost")
		}
		p.wire.Inject(late)
		p.exchange(1)
		p.expect(a, "to 0.00, from 0.00")
		p.expect(b, "to 0.00, from 0.00")
	})
}

// TestListen: an error is returned, the other family is used, and the next call tries again.
func TestListen(t *testing.T) {
	wire := hellotest.Wire{Err: context.DeadlineExceeded}
	s := hello.NewSpeaker(wire.Listen, 1000)
	state := hello.State{Own: []netip.Addr{a}, Peers: []netip.Addr{b}}
	if err := s.Follow(t.Context(), state); err == nil {
		t.Error("no error")
	}
	s.Ask(b)
	wire.Err = nil
	if err := s.Follow(t.Context(), state); err != nil {
		t.Error(err)
	}
	s.Ask(b)
	if wire.Sent(a) == 0 {
		t.Error("nothing was sent")
	}
	if err := s.Follow(t.Context(), hello.State{}); err != nil {
		t.Error(err)
	}
}
