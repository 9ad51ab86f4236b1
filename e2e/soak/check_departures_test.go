package soak

import (
	"net/netip"
	"testing"
	"time"
)

// revoked makes an operator revoke the lease of b, which takes another slot.
func revoked(s *story) {
	s.reads(30, 31, held(one, "a"))
	s.reads(31, 99, held(one, "a"), held(six, "b"))
	s.moves("b", 31, 99, six)
	s.Notices = []Notice{{"b", "n", 1, six}}
	s.claims("a", 31, 99, func(c *Claim) { c.View = []Entry{{one, "a"}, {six, "b"}} })
	s.claims("b", 31, 99, func(c *Claim) { c.View = []Entry{{one, "a"}, {six, "b"}} })
	s.list("a", 31, 99, six)
}

// left makes b leave the network from 20 to 40.
func left(s *story) {
	s.reads(21, 41, held(one, "a"))
	s.claims("b", 21, 42, func(c *Claim) { c.Subnets, c.File, c.View = nil, nil, nil })
	s.claims("a", 21, 42, func(c *Claim) { c.View = []Entry{{one, "a"}} })
	s.Routes = nil
}

// revived makes c replace a, and the store revive the session of a from 35 to 45. The agent of c has a's slot from a given time on.
func revived(s *story, from float64) {
	s.Nodes = append(s.Nodes, Node{"c", "n", false, []string{"a"}})
	s.Silences = []Silence{{"a", Span{0, forever}, ReplaceHost}, {"c", Span{0, sec(27)}, ReplaceHost}}
	s.mute("a", 0, 99)
	s.Rewinds = []Rewind{{Span: at(35), Why: RestoreStore}}
	s.reads(2, 26, lapsed(one, "a"), held(two, "b"))
	s.reads(26, 35, held(one, "c"), held(two, "b"))
	s.reads(45, 99, held(one, "c"), held(two, "b"))
	for t := from; t < 60; t++ {
		s.claim("c", t, one)
	}
	for _, node := range []string{"b", "c"} {
		s.claims(node, 0, 99, func(c *Claim) { c.View = nil })
	}
	s.Routes = nil
}

// fills gives the network a number of slots, and b has none.
func fills(slots int) func(*story) {
	return func(s *story) {
		for i := range s.Reads {
			s.Reads[i].Slots, s.Reads[i].Records = slots, []Record{held(one, "a"), held(two, "c")}
		}
		s.claims("b", 0, 99, func(c *Claim) {
			c.Subnets, c.File, c.Status, c.Trouble = nil, nil, "critical", "lease critical: network is full"
		})
		s.claims("a", 0, 99, func(c *Claim) { c.View = []Entry{{one, "a"}, {two, "c"}} })
		s.claims("b", 0, 99, func(c *Claim) { c.View = []Entry{} })
		s.Routes = nil
	}
}

func TestCheckDepartures(t *testing.T) {
	departs := func(s *story, from, to float64, why Kind) {
		s.Departures = []Departure{{Span{sec(from), sec(to)}, "b", "n", why}}
	}
	for name, c := range map[string]tale{
		"a lease is revoked": {func(s *story) {
			revoked(s)
			departs(s, 29.9, 30.1, RevokeLease)
		}, nil},
		"a lease disappears":         {revoked, []Rule{TakenEarly, Moved}},
		"a lease is revoked earlier": {func(s *story) { revoked(s); departs(s, 10, 10.1, RevokeLease) }, []Rule{TakenEarly, Moved}},
		"a host whose lease is revoked does not say that it moves": {func(s *story) {
			revoked(s)
			s.Notices = nil
			departs(s, 29.9, 30.1, RevokeLease)
		}, []Rule{MovedSilently}},
		"a host whose lease is revoked stays on its slot": {func(s *story) {
			s.reads(30, 31, held(one, "a"))
			s.reads(31, 99, held(one, "a"), held(two, "c"))
			departs(s, 29.9, 30.1, RevokeLease)
			s.claims("a", 31, 99, func(c *Claim) { c.View = nil })
			s.claims("b", 31, 99, func(c *Claim) { c.View = nil })
		}, []Rule{LostUnnoticed}},

		"a host whose lease is revoked gets the same subnet again": {func(s *story) {
			departs(s, 29.9, 30.1, RevokeLease)
			s.claims("a", 30, 31, func(c *Claim) { c.View = []Entry{{one, "a"}} })
		}, nil},
		"a view lacks a host long after its lease was revoked": {func(s *story) {
			departs(s, 29.9, 30.1, RevokeLease)
			s.claims("a", 30, 99, func(c *Claim) { c.View = []Entry{{one, "a"}} })
		}, []Rule{ViewDiffers}},

		"a host leaves and comes back": {func(s *story) { left(s); departs(s, 20, 40, LeaveNetwork) }, nil},
		"a host leaves by itself":      {left, []Rule{TakenEarly, SubnetGone, NotRecovered}},
		"a host that left does not come back": {func(s *story) {
			left(s)
			departs(s, 20, 25, LeaveNetwork)
		}, []Rule{NotRecovered}},
		"a host that left waits for others after a loss": {func(s *story) {
			left(s)
			departs(s, 20, 30, LeaveNetwork)
		}, nil},
		"a record is removed, and is back in a restored store": {func(s *story) {
			s.Rewinds = []Rewind{{Span: at(31), Why: RestoreStore}}
			s.claims("a", 30, 31, func(c *Claim) { c.View = []Entry{{one, "a"}} })
		}, nil},

		"a host that was given up waits in a full network before it moves": {func(s *story) {
			taken(s)
			for i := range s.Reads {
				s.Reads[i].Slots = 2
			}
			s.claims("a", 45, 55, func(c *Claim) { c.Subnets, c.File, c.Status = nil, nil, "critical" })
			s.moves("a", 55, 99, two)
			s.reads(55, 99, held(one, "b"), held(two, "a"))
			s.Notices = append(s.Notices, Notice{"a", "n", 1, two})
		}, nil},
		"a host that was given up moves later": {func(s *story) {
			s.silence("b", 10, 34, StopPastHold)
			s.mute("b", 10, 34)
			revoked(s)
			s.reads(30, 46, held(one, "a"), held(two, "b"))
			s.moves("b", 30, 46, two)
			s.claims("a", 0, 99, func(c *Claim) { c.View = nil })
			s.claims("b", 0, 99, func(c *Claim) { c.View = nil })
			s.Routes = nil
		}, []Rule{Moved}},
		"a host waits while the network is full": {fills(2), nil},
		"a host waits and leaves its subnet file": {func(s *story) {
			fills(2)(s)
			s.claims("b", 0, 99, func(c *Claim) { c.File = []netip.Prefix{two} })
		}, []Rule{NotRecovered}},
		"a host waits while there is a free subnet": {fills(3), []Rule{NotRecovered}},
		"a host waits in a network without limits":  {fills(0), []Rule{NotRecovered}},

		"a restored store revives a host whose slot another one has":    {func(s *story) { revived(s, 28) }, nil},
		"a host takes the slot of a host that a restored store revives": {func(s *story) { revived(s, 45) }, []Rule{TakenEarly}},

		"packets are lost while a host changes its address": {func(s *story) {
			s.silence("a", 20, 22, ChangeAddress)
			s.Losses = []Loss{{"n", "a", "b", sec(20), false}, {"n", "b", "a", sec(26), true}}
			s.Removals = []Removal{{"a", sec(21), two}}
		}, nil},
		"packets are lost long after a host changed its address": {func(s *story) {
			s.silence("a", 20, 22, ChangeAddress)
			s.Losses = []Loss{{"n", "b", "a", sec(28), false}}
		}, []Rule{PingLost}},
		"a peer removes its route when a host changes its address": {func(s *story) {
			s.silence("a", 20, 22, ChangeAddress)
			s.Removals = []Removal{{"b", sec(21), one}}
		}, []Rule{RouteRemoved}},
		"a routing rule takes packets to an address that a host has not now": {func(s *story) {
			s.detour("", 20, 20)
			s.silence("b", 15, 16, ChangeAddress)
			s.silence("b", 55, 56, ChangeAddress)
		}, nil},
	} {
		t.Run(name, c.test)
	}
}

// TestMayBeKept checks how long a host may keep what the store has lost.
func TestMayBeKept(t *testing.T) {
	s := quiet()
	s.Rewinds = []Rewind{{Span: at(10), Why: EmptyStore}, {Span: at(40), Why: RestoreStore}, {Span: at(200), Why: EmptyStore}}
	c := newChecker(s.History)
	for moment, want := range map[float64]float64{9: 9, 41: 10, 74: 10, 80: 80, 230: 200, 240: 240} {
		if got := c.mayBeKept("a", sec(moment)); got != sec(want) {
			t.Errorf("at %v: %s, want %v", moment, got, want)
		}
	}
}

// TestMoveTimes moves the times of a state file.
func TestMoveTimes(t *testing.T) {
	value, err := decode([]byte(`{"renewed":"2026-01-02T03:04:05Z","lease_index":18446744073709551615,"definition":{"restored":"2026-01-02T03:04:05Z"},"all":["2026-01-02T03:04:05Z","x"]}`))
	if err != nil {
		t.Fatal(err)
	}
	want, err := decode([]byte(`{"renewed":"2026-01-02T05:04:05Z","lease_index":18446744073709551615,"definition":{"restored":"2026-01-02T03:04:05Z"},"all":["2026-01-02T05:04:05Z","x"]}`))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, moveTimes(value, 2*time.Hour), want)
}

// TestFull checks that the full network has as many subnets as hosts, and that its record says so.
func TestFull(t *testing.T) {
	o := Defaults()
	n := findNetwork(full)
	if n.slots(o, 0) != 18 || n.slots(o, 1) != 17 || n.last(o, 0) != "10.12.18.0" {
		t.Error(n.slots(o, 0), n.slots(o, 1), n.last(o, 0))
	}
	limits := &pair{record: []byte(`{"pools":[{"min":"10.12.1.0","max":"10.12.18.0"}]}`)}
	if got := slotsOf(limits); got != 18 {
		t.Error(got)
	}
}
