package soak

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	one = netip.MustParsePrefix("10.5.1.0/24")
	two = netip.MustParsePrefix("10.5.2.0/24")
	six = netip.MustParsePrefix("10.5.6.0/24")
)

// meaning is the definition of network n.
const meaning = "vxlan"

// A story is a quiet minute of two hosts, a in slot one and b in slot two. A test changes in it
// what the checker should find.
type story struct{ History }

// sec returns a moment of the run.
func sec(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// at returns the span of a look at that moment.
func at(s float64) Span { return Span{sec(s), sec(s + 0.01)} }

func quiet() *story {
	s := &story{History{
		Rules:    Rules{TTL: 10 * time.Second, Hold: 20 * time.Second, Settle: 5 * time.Second},
		Networks: []NetworkInfo{{"n", nil}},
		Nodes:    []Node{{"a", "n", true, nil}, {"b", "n", true, nil}},
		Changes:  []Change{{Span{0, 0}, "n", DefineNetwork, meaning, true}},
	}}
	for t := range 60 {
		s.claim("a", float64(t), one)
		s.claim("b", float64(t)+0.5, two)
		s.read(float64(t)+0.25, held(one, "a"), held(two, "b"))
		s.Routes = append(s.Routes,
			RouteList{"a", sec(float64(t) + 0.1), []netip.Prefix{two}, []string{"n"}, nil, nil, nil, nil, 1500},
			RouteList{"b", sec(float64(t) + 0.6), []netip.Prefix{one}, []string{"n"}, nil, nil, nil, nil, 1500})
	}
	return s
}

func held(subnet netip.Prefix, node string) Record {
	return Record{Entry{subnet, node}, []netip.Prefix{subnet}, "session-" + node}
}

func lapsed(subnet netip.Prefix, node string) Record {
	r := held(subnet, node)
	r.Session = ""
	return r
}

func (s *story) claim(node string, t float64, subnets ...netip.Prefix) {
	s.Claims = append(s.Claims, Claim{
		Node: node, Network: "n", Span: at(t), Process: 1, Answered: true, Subnets: subnets, Status: passing, Renewed: sec(t - 1),
		View: []Entry{{one, "a"}, {two, "b"}}, File: subnets,
	})
}

func (s *story) read(t float64, records ...Record) {
	s.Reads = append(s.Reads, Read{
		Span: at(t), Network: "n", State: stateDefined, Definition: meaning, Backends: []Backend{{Type: meaning}}, Records: records,
	})
}

// claims changes what a node's agent says in a time.
func (s *story) claims(node string, from, to float64, change func(*Claim)) {
	for i := range s.Claims {
		if c := &s.Claims[i]; c.Node == node && c.From >= sec(from) && c.From < sec(to) {
			change(c)
		}
	}
}

// reads changes the records in the store in a time.
func (s *story) reads(from, to float64, records ...Record) {
	for i := range s.Reads {
		if r := &s.Reads[i]; r.From >= sec(from) && r.From < sec(to) {
			r.Records = records
		}
	}
}

func (s *story) list(node string, from, to float64, routes ...netip.Prefix) {
	for i := range s.Routes {
		if l := &s.Routes[i]; l.Node == node && l.At >= sec(from) && l.At < sec(to) {
			l.To = routes
		}
	}
}

func (s *story) devices(node string, from, to float64, networks ...string) {
	for i := range s.Routes {
		if l := &s.Routes[i]; l.Node == node && l.At >= sec(from) && l.At < sec(to) {
			l.Devices = networks
		}
	}
}

// states changes the network's own record in a time.
func (s *story) states(from, to float64, state, definition string) {
	for i := range s.Reads {
		if r := &s.Reads[i]; r.From >= sec(from) && r.From < sec(to) {
			r.State, r.Definition = state, definition
		}
	}
}

// suspendWireGuard suspends the agent of a host in a network that agents carry with WireGuard.
func (s *story) suspendWireGuard(node string, from, to float64) {
	s.InProcess = []string{"udp", "wireguard"}
	for i := range s.Reads {
		s.Reads[i].Backends = []Backend{{"wireguard", false}}
	}
	s.silence(node, from, to, StopPastTTL)
	s.mute(node, from, to)
}

// deleteAt makes an operator delete the network, and both hosts leave it two seconds later.
func (s *story) deleteAt(t float64) {
	s.Changes = append(s.Changes, Change{at(t), "n", DeleteNetwork, "", true})
	s.states(t, 99, stateDeleted, "")
	s.reads(t+2, 99)
	for _, node := range []string{"a", "b"} {
		s.claims(node, t+2, 99, func(c *Claim) { c.Subnets, c.File, c.View = nil, nil, nil })
		s.list(node, t+2, 99)
		s.devices(node, t+2, 99)
	}
}

// switchAt makes an operator switch the network to another backend, which ends at the given time. The hosts remove the
// old device a second later.
func (s *story) switchAt(from, to float64, backend string) {
	s.Changes = append(s.Changes, Change{at(from), "n", SwitchBackend, backend, true})
	s.states(from, 99, stateDefined, backend)
	for i := range s.Reads {
		switch r := &s.Reads[i]; {
		case r.From >= sec(to):
			r.Backends = []Backend{{backend, true}}
		case r.From >= sec(from):
			r.Backends = []Backend{{meaning, false}, {backend, true}}
		}
	}
	device := Backend{backend, true}.device("n")
	for _, node := range []string{"a", "b"} {
		s.devices(node, from+1, 99, "n", device)
		s.devices(node, to+1, 99, device)
	}
}

func (s *story) silence(node string, from, to float64, why Kind) {
	s.Silences = append(s.Silences, Silence{node, Span{sec(from), sec(to)}, why})
}

// mute removes a stopped agent's answers.
func (s *story) mute(node string, from, to float64) {
	s.claims(node, from, to, func(c *Claim) { c.Answered = false })
}

func (s *story) moves(node string, from, to float64, subnet netip.Prefix) {
	s.claims(node, from, to, func(c *Claim) { c.Subnets, c.File = []netip.Prefix{subnet}, []netip.Prefix{subnet} })
}

// lostInSilence makes a and b silent while the store is emptied. a comes back at 32 and claims its
// lease again at the given time. b, whose session has ended by 40, comes back at 55.
func lostInSilence(s *story, again float64) {
	s.silence("a", 20, 32, StopPastHold)
	s.mute("a", 20, 32)
	s.silence("b", 20, 55, StopPastHold)
	s.mute("b", 20, 55)
	s.Rewinds = []Rewind{{Span: at(25), Why: EmptyStore}}
	s.reads(25, again)
	s.reads(again, 99, held(one, "a"))
	s.claims("a", 32, again, func(c *Claim) { c.Status = "warning" })
	s.claims("a", 32, 99, func(c *Claim) { c.View = []Entry{{one, "a"}} })
}

// deadInSilence is lostInSilence, but b is replaced by a new host, which comes later.
func deadInSilence(s *story, again float64) {
	lostInSilence(s, again)
	s.Silences[1] = Silence{"b", Span{sec(20), forever}, ReplaceHost}
	s.mute("b", 20, 99)
	s.Nodes = append(s.Nodes, Node{"c", "n", false, []string{"b"}})
	s.silence("c", 20, 90, ReplaceHost)
}

// taken makes a silent from 5 to 45. After the hold time, b takes a's slot, because another host
// wanted b's.
func taken(s *story) {
	s.silence("a", 5, 45, StopPastHold)
	s.mute("a", 5, 45)
	s.reads(15, 40, lapsed(one, "a"), held(two, "b"))
	s.reads(40, 99, held(one, "b"))
	s.moves("b", 40, 99, one)
	s.claims("a", 0, 99, func(c *Claim) { c.View = nil })
	s.claims("b", 0, 99, func(c *Claim) { c.View = nil })
	s.Notices = append(s.Notices, Notice{"b", "n", 1, one}, Notice{"a", "n", 1, six})
	s.Routes = nil
	s.silence("b", 0, 39, CutHost) // so that it is allowed to move
}

// givenUp makes b silent until 26, after it was given up at 24.
func givenUp(s *story) {
	s.silence("b", 0, 26, StopPastHold)
	s.mute("b", 0, 26)
	s.reads(3, 24, held(one, "a"), lapsed(two, "b"))
	s.reads(24, 26, held(one, "a"))
	s.claims("a", 24, 99, func(c *Claim) { c.View = nil })
	s.claims("b", 26, 99, func(c *Claim) { c.View = nil })
	s.Routes = nil
}

// cameBack makes the store lose all records, and a silent until 29, so that b gets a's subnet at 15. At 30, the store loses all
// records again, and a is the first to write its own.
func cameBack(s *story) {
	s.Rewinds = []Rewind{{Span: at(4), Why: RestoreOldest}, {Span: at(30), Why: EmptyStore}}
	s.silence("a", 5, 29, CutHost)
	s.silence("b", 0, 14, CutHost) // so that it is allowed to move
	s.reads(4, 15, held(two, "b"))
	s.reads(15, 30, held(one, "b"))
	s.reads(30, 31)
	s.reads(31, 33, held(one, "a"))
	s.reads(33, 99, held(one, "a"), held(six, "b"))
	s.moves("b", 15, 33, one)
	s.moves("b", 33, 99, six)
	s.Notices = append(s.Notices, Notice{"a", "n", 1, two}, Notice{"b", "n", 1, one}, Notice{"b", "n", 1, six})
	for _, node := range []string{"a", "b"} {
		s.claims(node, 0, 99, func(c *Claim) { c.View = nil })
	}
	s.Routes = nil
}

func TestCheck(t *testing.T) {
	none := func(*story) {}
	for name, c := range map[string]tale{
		"nothing happens": {none, nil},

		"two hosts on one slot": {func(s *story) {
			s.moves("b", 30, 99, one)
			s.Notices = []Notice{{"b", "n", 1, one}}
		}, []Rule{TwoHolders, Moved, LostUnnoticed, RouteMissing}},
		"two hosts on overlapping slots": {func(s *story) {
			s.moves("b", 30, 99, netip.MustParsePrefix("10.5.0.0/16"))
			s.Notices = []Notice{{"b", "n", 1, netip.MustParsePrefix("10.5.0.0/16")}}
		}, []Rule{TwoHolders, Moved, LostUnnoticed, RouteMissing}},
		"a host that was stopped finds its slot taken, and leaves it": {func(s *story) {
			taken(s)
			s.moves("a", 48, 99, six)
			s.reads(48, 99, held(one, "b"), held(six, "a"))
		}, nil},
		"a host that was stopped finds its slot taken, and withdraws it before it has another": {func(s *story) {
			taken(s)
			s.claims("a", 46, 48, func(c *Claim) { c.Subnets, c.File = nil, nil })
			s.Removals = []Removal{{"a", sec(46.2), two}}
			s.moves("a", 48, 99, six)
			s.reads(48, 99, held(one, "b"), held(six, "a"))
		}, nil},
		"a host that was stopped finds its slot taken, and has another before its subnet file": {func(s *story) {
			taken(s)
			s.claims("a", 46, 47, func(c *Claim) { c.Subnets, c.File = []netip.Prefix{six}, nil })
			s.moves("a", 47, 99, six)
			s.reads(46, 99, held(one, "b"), held(six, "a"))
		}, nil},
		"a host that was stopped stays on a slot that was taken": {func(s *story) {
			taken(s)
		}, []Rule{TwoHolders, LostUnnoticed}},
		"a host that was stopped waits long for another slot": {func(s *story) {
			taken(s)
			s.claims("a", 46, 99, func(c *Claim) {
				c.Subnets, c.File, c.Status, c.Trouble = nil, nil, "critical", "lease critical: waiting for a lease: none is free"
			})
		}, []Rule{NotRecovered}},
		"a host that was stopped waits long for another slot, and does not withdraw the one that was taken": {func(s *story) {
			taken(s)
			s.claims("a", 45, 99, func(c *Claim) { c.Status, c.Trouble = "warning", "lease warning: waiting for a lease: none is free" })
		}, []Rule{TwoHolders, NotRecovered, LostUnnoticed}},
		"a slot is taken from a host that is there": {func(s *story) {
			taken(s)
			s.Silences = nil
			s.mute("a", 0, 0)
			s.claims("a", 0, 99, func(c *Claim) { c.Answered = true })
			s.moves("a", 42, 99, six)
			s.reads(42, 99, held(one, "b"), held(six, "a"))
		}, []Rule{TwoHolders, LostUnnoticed, Moved}},
		"two claims after a restore, one gives way": {func(s *story) {
			s.Rewinds = []Rewind{{Span: at(30), Why: RestoreStore}}
			s.moves("b", 30.1, 33, one)
			s.moves("b", 33, 99, six)
			s.reads(30.1, 99, held(one, "a"), held(six, "b"))
			s.Notices = []Notice{{"b", "n", 1, six}, {"b", "n", 1, one}}
			s.claims("a", 30, 99, func(c *Claim) { c.View = []Entry{{one, "a"}, {six, "b"}} })
			s.claims("b", 30, 99, func(c *Claim) { c.View = []Entry{{one, "a"}, {six, "b"}} })
			s.list("a", 30, 99, six)
		}, []Rule{Moved}}, // no other node was on b's subnet

		"a new host comes to a slot that is in use": {func(s *story) {
			s.Nodes = append(s.Nodes, Node{"c", "n", false, []string{"z"}})
			s.silence("c", 30, 50, ReplaceHost)
			s.Rewinds = []Rewind{{Span: at(20), Why: RestoreStore}}
			s.reads(20, 99, held(two, "b"))
			s.reads(36, 99, held(two, "b"), held(one, "c"))
			for t := range 5 {
				s.claim("c", 36+float64(t), one)
			}
			s.moves("a", 40, 99, six)
			s.Notices = []Notice{{"a", "n", 1, six}}
			s.list("b", 20, 99, six)
			s.silence("a", 20, 99, CutHost) // an excuse for the other rules
			s.Silences[len(s.Silences)-1].Why = ReplaceHost
			s.claims("b", 20, 99, func(c *Claim) { c.View = nil })
		}, []Rule{TwoHolders}},
		"a view stays with who was there before a restore": {func(s *story) {
			s.Rewinds = []Rewind{{Span: at(30), Why: RestoreStore}}
			s.reads(10, 30, held(one, "a"), held(two, "b"), held(six, "c"))
			s.reads(30, 99, held(one, "a"), held(two, "b"), held(six, "z"))
			for _, node := range []string{"a", "b"} {
				s.claims(node, 10, 55, gain)
				s.claims(node, 55, 99, gained(Entry{six, "z"}))
			}
		}, nil},

		"two records of one slot": {func(s *story) {
			s.reads(30, 31, held(one, "a"), held(two, "b"), held(netip.MustParsePrefix("10.5.2.128/25"), "a"))
		}, []Rule{OverlapInStore}},

		"a record is given away before hold": {func(s *story) {
			s.silence("a", 5, 99, StopPastHold)
			s.mute("a", 5, 99)
			s.reads(15, 25, lapsed(one, "a"), held(two, "b"))
			s.reads(25, 99, held(one, "c"), held(two, "b"))
			s.Routes = nil
			s.claims("b", 0, 99, func(c *Claim) { c.View = nil })
		}, []Rule{TakenEarly}},
		"a record is removed before hold": {func(s *story) {
			s.silence("a", 5, 99, StopPastHold)
			s.mute("a", 5, 99)
			s.reads(15, 25, lapsed(one, "a"), held(two, "b"))
			s.reads(25, 99, held(two, "b"))
			s.Routes = nil
			s.claims("b", 25, 99, func(c *Claim) { c.View = []Entry{{two, "b"}} })
		}, []Rule{TakenEarly}},
		"a record is removed after hold": {func(s *story) {
			s.silence("a", 5, 99, StopPastHold)
			s.mute("a", 5, 99)
			s.reads(15, 36, lapsed(one, "a"), held(two, "b"))
			s.reads(36, 99, held(two, "b"))
			s.list("b", 36, 99)
			s.claims("b", 36, 99, func(c *Claim) { c.View = []Entry{{two, "b"}} })
		}, nil},
		"a slot is taken after the store was emptied": {func(s *story) {
			s.Rewinds = []Rewind{{Span: at(30), Why: EmptyStore}}
			s.reads(30.1, 32, held(two, "b"))
			s.reads(32, 99, held(one, "c"), held(two, "b"))
			s.moves("a", 34, 99, six)
			s.Notices = []Notice{{"a", "n", 1, six}}
		}, []Rule{TakenEarly, Moved, LostUnnoticed, ViewDiffers, RouteMissing}},
		"a host comes back to its subnet just when the store loses the host that has it": {cameBack, nil},
		"another host takes the subnet then": {func(s *story) {
			cameBack(s)
			s.reads(31, 33, held(one, "c"))
			s.reads(33, 99, held(one, "c"), held(six, "b"))
			s.moves("a", 31, 99, two)
		}, []Rule{TakenEarly, Moved, LostUnnoticed}},
		"the store is emptied and written again": {func(s *story) {
			s.Rewinds = []Rewind{{Span: at(30), Why: EmptyStore}}
			s.reads(30.1, 33)
		}, nil},
		"a host that was silent when the store was emptied waits for another's session to end": {func(s *story) { lostInSilence(s, 44) }, nil},
		"a host that was silent when the store was emptied waits for the session of a dead host to end": {
			func(s *story) { deadInSilence(s, 44) }, nil,
		},
		"a host that was silent when the store was emptied waits for a dead host for longer": {
			func(s *story) { deadInSilence(s, 47) }, []Rule{NotRecovered},
		},
		"a host that was silent when the store was emptied waits for longer": {func(s *story) { lostInSilence(s, 47) }, []Rule{NotRecovered}},
		"a host takes a claim back that it made while the definition was lost": {func(s *story) {
			s.Rewinds = []Rewind{{Span: at(30), Why: EmptyStore}}
			s.reads(30.1, 31)
			s.reads(32, 33, held(one, "a"))
		}, nil},
		"a record goes without a loss": {func(s *story) { s.reads(32, 33, held(one, "a")) }, []Rule{TakenEarly}},
		"a network is not put back": {func(s *story) {
			s.Rewinds = []Rewind{{Span: at(30), Why: EmptyStore}}
			for i := range s.Reads {
				if s.Reads[i].From >= sec(30) {
					s.Reads[i].State, s.Reads[i].Definition = stateMissing, ""
				}
			}
		}, []Rule{NotDefined}},

		"a claim is lost unnoticed": {func(s *story) {
			s.reads(40, 99, lapsed(one, "a"), held(two, "b"))
		}, []Rule{LostUnnoticed}},
		"a host that does not recover": {func(s *story) {
			s.silence("a", 10, 20, CutHost)
			s.claims("a", 10, 28, func(c *Claim) { c.Status = "warning" })
		}, []Rule{NotRecovered}},
		"a host whose predecessor a restore brought back": {func(s *story) {
			s.Nodes[0].Replaces = []string{"z"}
			s.reads(20, 30, held(one, "a"), held(two, "b"), held(six, "z"))
			s.reads(30, 99, held(one, "a"), held(two, "b"), lapsed(six, "z"))
			s.claims("a", 21, 33, func(c *Claim) { c.Status = "critical" })
			s.claims("a", 21, 99, gained(Entry{six, "z"}))
			s.claims("b", 21, 99, gained(Entry{six, "z"}))
		}, nil},
		"a host that recovers in time": {func(s *story) {
			s.silence("a", 10, 20, CutHost)
			s.claims("a", 10, 24, func(c *Claim) { c.Status = "warning" })
		}, nil},
		"an agent that hangs":            {func(s *story) { s.mute("a", 30, 35) }, []Rule{NotRecovered}},
		"one look is not answered":       {func(s *story) { s.mute("a", 30, 30) }, nil},
		"an agent without a subnet":      {func(s *story) { s.claims("a", 30, 99, func(c *Claim) { c.Subnets, c.File = nil, nil }) }, []Rule{NotRecovered, SubnetGone}},
		"a lease is not renewed":         {func(s *story) { s.claims("a", 30, 99, func(c *Claim) { c.Renewed = sec(25) }) }, []Rule{NotRecovered}},
		"an agent ends":                  {func(s *story) { s.Endings = []Ending{{"a", sec(3), "panic"}} }, []Rule{AgentEnded}},
		"a host moves and says nothing":  {func(s *story) { taken(s); s.Notices = s.Notices[1:]; s.mute("a", 45, 99) }, []Rule{MovedSilently, NotRecovered}},
		"a view shows what is not there": {func(s *story) { s.reads(30, 99, held(one, "a"), held(two, "b")); s.claims("a", 30, 32, gain) }, []Rule{ViewDiffers}},
		"a view shows what was deleted while it missed the history": {func(s *story) {
			s.Silences = []Silence{{"a", Span{sec(10), sec(20)}, CutHost}}
			s.Compactions = []time.Duration{sec(15)}
			s.claims("a", 30, 32, gain)
		}, nil},
		"a view shows what was deleted after it missed the history": {func(s *story) {
			s.Silences = []Silence{{"a", Span{sec(2), sec(5)}, CutHost}}
			s.Compactions = []time.Duration{sec(15)}
			s.claims("a", 30, 32, gain)
		}, []Rule{ViewDiffers}},
		"a view shows what was deleted while it was silent, after a loss": {func(s *story) {
			s.Rewinds = []Rewind{{Span: at(9), Why: RestoreOldest}}
			s.silence("a", 9.5, 30, CutHost)
			s.claims("a", 36, 38, gain)
		}, nil},
		"a view shows what was deleted before it was silent, and after a loss": {func(s *story) {
			s.Rewinds = []Rewind{{Span: at(2), Why: RestoreOldest}}
			s.silence("a", 9.5, 12, CutHost)
			s.claims("a", 50, 52, gain)
		}, []Rule{ViewDiffers}},
		"a view lacks what is there": {func(s *story) { s.claims("a", 30, 32, func(c *Claim) { c.View = c.View[:1] }) }, []Rule{ViewDiffers}},
		"a view is behind for a moment": {func(s *story) {
			s.reads(28, 99, held(one, "a"), held(two, "b"), lapsed(six, "c"))
			s.claims("a", 31, 99, gain)
			s.claims("b", 32, 99, gain)
		}, nil},
		"views keep what a store lost": {func(s *story) {
			s.Nodes = append(s.Nodes, Node{"c", "n", false, nil})
			s.silence("c", 5, 99, StopPastHold)
			s.Rewinds = []Rewind{{Span: at(30), Why: EmptyStore}}
			s.reads(0, 30, held(one, "a"), held(two, "b"), held(six, "c"))
			s.claims("a", 0, 50, gain)
			s.claims("b", 0, 50, gain)
		}, nil},

		"an operator's change is undone": {func(s *story) {
			s.Changes = append(s.Changes, Change{at(30), "n", ChangeNetwork, "vxlan 2", true})
		}, []Rule{OtherMeaning}},
		"a change comes back after a loss": {func(s *story) {
			s.Changes = append(s.Changes, Change{at(20), "n", ChangeNetwork, "vxlan 2", true})
			s.states(20, 30, stateDefined, "vxlan 2")
			s.states(30, 32, stateMissing, "")
			s.states(32, 99, stateDefined, "vxlan 2")
			s.Rewinds = []Rewind{{Span: at(30), Why: LoseNetwork, Network: "n"}}
		}, nil},
		"a change is lost with the definition": {func(s *story) {
			s.Changes = append(s.Changes, Change{at(20), "n", ChangeNetwork, "vxlan 2", true})
			s.states(20, 30, stateDefined, "vxlan 2")
			s.Rewinds = []Rewind{{Span: at(30), Why: LoseNetwork, Network: "n"}}
		}, []Rule{OtherMeaning}},
		"a change is lost, with everything else, and then by a snapshot from before it": {func(s *story) {
			s.Changes = append(s.Changes, Change{at(20), "n", ChangeNetwork, "vxlan 2", true})
			s.states(20, 40, stateDefined, "vxlan 2")
			s.Rewinds = []Rewind{{Span: at(30), Why: EmptyStore}, {Span: at(40), Why: RestoreStore, Saved: sec(10)}}
		}, []Rule{OtherMeaning}},
		"a definition that cannot be read is left": {func(s *story) {
			s.states(30, 99, stateUnreadable, "")
		}, []Rule{NotDefined}},
		"a subnet file goes": {func(s *story) {
			s.claims("a", 30, 31, func(c *Claim) { c.File = nil })
		}, []Rule{SubnetGone, NotRecovered}},
		"a subnet file goes while the agent is down": {func(s *story) {
			s.silence("a", 25, 40, KillAgent)
			s.mute("a", 25, 40)
			s.claims("a", 30, 40, func(c *Claim) { c.File = nil })
		}, []Rule{SubnetGone}},
		"a subnet file is not moved": {func(s *story) {
			s.Options = []OptionChange{{at(30), "a", "n"}}
			s.claims("a", 30, 99, func(c *Claim) { c.OldFile = true })
		}, []Rule{NotRecovered}},
		"an agent takes a network up again with other options": {func(s *story) {
			s.Options = []OptionChange{{at(30), "a", "n"}}
			s.claims("a", 30, 31, func(c *Claim) { c.Subnets = nil })
		}, nil},
		"an agent forgets its subnet when the store is emptied": {func(s *story) {
			s.Rewinds = []Rewind{{Span: at(30), Why: EmptyStore}}
			s.claims("a", 31, 33, func(c *Claim) { c.Subnets = nil })
		}, []Rule{SubnetGone}},
		"a device goes when the store is set back": {func(s *story) {
			s.Rewinds = []Rewind{{Span: at(30), Why: RestoreOldest}}
			s.Devices = []DeviceLoss{{"a", "n", sec(32)}}
		}, []Rule{DeviceGone}},
		"a device is not there": {func(s *story) { s.devices("a", 30, 99) }, []Rule{DeviceGone}},

		"a network is deleted": {func(s *story) { s.deleteAt(30) }, nil},
		"a network is deleted while a host is away": {func(s *story) {
			s.deleteAt(30)
			s.silence("b", 25, 45, KillAgent)
			s.mute("b", 25, 45)
			s.claims("b", 25, 47, func(c *Claim) { c.File = []netip.Prefix{two} })
			s.devices("b", 25, 47, "n")
			s.list("b", 25, 47, one)
			for i := range s.Reads {
				if r := &s.Reads[i]; r.From >= sec(30) && r.From < sec(47) {
					r.Records = []Record{lapsed(two, "b")}
				}
			}
		}, nil},
		"a host that was away stays in a network that was deleted": {func(s *story) {
			s.deleteAt(30)
			s.silence("b", 25, 35, KillAgent)
			s.mute("b", 25, 35)
			s.claims("b", 25, 99, func(c *Claim) { c.Subnets, c.File = []netip.Prefix{two}, []netip.Prefix{two} })
		}, []Rule{DeletedStays}},
		"a deleted network keeps a device": {func(s *story) {
			s.deleteAt(30)
			s.devices("a", 30, 99, "n")
		}, []Rule{DeletedStays}},
		"a deleted network keeps a route": {func(s *story) {
			s.deleteAt(30)
			s.list("a", 30, 99, two)
		}, []Rule{DeletedStays}},
		"a deleted network keeps a subnet file": {func(s *story) {
			s.deleteAt(30)
			s.claims("a", 30, 99, func(c *Claim) { c.File = []netip.Prefix{one} })
		}, []Rule{DeletedStays}},
		"a deleted network keeps a lease": {func(s *story) {
			s.Rules.Hold = time.Second
			s.deleteAt(20)
			s.reads(20, 99, held(one, "a"))
		}, []Rule{DeletedStays}},
		"a lease of a deleted network ends with its session": {func(s *story) {
			s.deleteAt(20)
			s.reads(20, 50, held(one, "a"))
		}, nil},
		"a deleted network comes back": {func(s *story) {
			s.deleteAt(30)
			s.states(40, 41, stateDefined, meaning)
		}, []Rule{DeletedReturns}},
		"a deleted network comes back with an emptied store": {func(s *story) {
			s.deleteAt(30)
			s.Rewinds = []Rewind{{Span: at(45), Why: EmptyStore}}
			s.states(45, 50, stateMissing, "")
			s.states(50, 51, stateDefined, meaning)
		}, []Rule{DeletedReturns}},
		"a host that saw its deletion defines a network from its file in an emptied store": {func(s *story) {
			s.Networks[0].Definers = []string{"a"}
			s.deleteAt(30)
			s.Rewinds = []Rewind{{Span: at(45), Why: EmptyStore}}
			s.states(45, 50, stateMissing, "")
			s.states(50, 51, stateDefined, meaning)
		}, []Rule{DeletedReturns}},
		"a new host defines a deleted network from its file in an emptied store": {func(s *story) {
			s.Networks[0].Definers = []string{"a"}
			s.deleteAt(30)
			s.Nodes = append(s.Nodes, Node{"a2", "n", false, []string{"a"}})
			s.silence("a2", 47, 48, ReplaceHost)
			s.Rewinds = []Rewind{{Span: at(45), Why: EmptyStore}}
			s.states(45, 50, stateMissing, "")
			s.states(50, 51, stateDefined, meaning)
		}, nil},
		"a host that was away puts a deleted network into an emptied store": {func(s *story) {
			s.deleteAt(30)
			s.silence("b", 25, 45, KillAgent)
			s.mute("b", 25, 45)
			s.claims("b", 25, 99, func(c *Claim) { c.Subnets, c.File = []netip.Prefix{two}, []netip.Prefix{two} })
			s.Rewinds = []Rewind{{Span: at(40), Why: EmptyStore}}
			s.states(40, 50, stateMissing, "")
			s.states(50, 51, stateDefined, meaning)
		}, nil},
		"the record of a deletion goes": {func(s *story) {
			s.deleteAt(30)
			s.states(40, 99, stateMissing, "")
		}, []Rule{DeletionLost}},

		"records are looked through later": {func(s *story) {
			s.Storms = []Storm{{Span{sec(5), sec(10)}, RestoreBad}}
			s.claims("a", 0, 40, func(c *Claim) {
				c.Status, c.Trouble = "warning", "records warning: the first leno/leases/n/1: invalid"
			})
			s.claims("a", 0, 5, func(c *Claim) { c.Status, c.Trouble = passing, "" })
		}, nil},
		"records under keys that are no subnets are looked through even later": {func(s *story) {
			s.Storms = []Storm{{Span{sec(5), sec(10)}, RestoreBad}}
			for i := range 4 {
				s.Nodes = append(s.Nodes, Node{fmt.Sprint("c", i), "n", false, nil})
			}
			s.claims("a", 10, 99, func(c *Claim) {
				c.Status, c.Trouble = "warning", "records warning: the first leno/leases/n/nonsense: invalid"
			})
		}, nil},
		"a peer without a handshake is cut off": {func(s *story) {
			s.silence("b", 20, 30, CutHost)
			s.claims("a", 28, 34, func(c *Claim) {
				c.Status, c.Trouble = "warning", "routes warning: 1 peer in place; no handshake with b so far; accept the port"
			})
		}, nil},
		"a peer without a handshake was cut off before": {func(s *story) {
			s.silence("b", 20, 30, CutHost)
			s.claims("a", 40, 41, func(c *Claim) {
				c.Status, c.Trouble = "warning", "routes warning: 1 peer in place; no handshake with b so far; accept the port"
			})
		}, []Rule{NotRecovered}},
		"one of two peers without a handshake is cut off": {func(s *story) {
			s.silence("b", 20, 30, CutHost)
			s.claims("a", 28, 34, func(c *Claim) {
				c.Status, c.Trouble = "warning", "routes warning: 1 peer in place; no handshake with b so far, c since 20s; accept the port"
			})
		}, []Rule{NotRecovered}},
		"packets are lost to a peer that is cut off, or was": {func(s *story) {
			s.silence("b", 20, 30, CutHost)
			s.claims("a", 28, 34, func(c *Claim) {
				c.Status, c.Trouble = "warning", "routes warning: no handshake with b so far; accept the port; "+
					"paths warning: packets are lost to 1 of 2 hosts: b (no packet is answered, also outside the overlay)"
			})
			s.claims("a", 34, 45, func(c *Claim) {
				c.Status, c.Trouble = "warning", "paths warning: packets are lost to 1 of 1 host: b (no packet is answered)"
			})
		}, nil},
		"packets are lost to all peers of a host that is cut off": {func(s *story) {
			s.silence("b", 20, 30, CutHost)
			s.claims("b", 31, 40, func(c *Claim) {
				c.Status, c.Trouble = "critical", "paths critical: this host reaches no other one; others reach each other: "+
					"packets are lost to 2 of 2 hosts: a (no packet is answered), c (no packet is answered)"
			})
		}, nil},
		"a host that was cut off is critical for another reason": {func(s *story) {
			s.silence("b", 20, 30, CutHost)
			s.claims("b", 31, 40, func(c *Claim) {
				c.Status, c.Trouble = "critical", "routes critical: no handshake with b so far; accept the port"
			})
		}, []Rule{NotRecovered}},
		"packets are lost to a peer that was cut off long ago": {func(s *story) {
			s.silence("b", 20, 30, CutHost)
			s.claims("a", 55, 56, func(c *Claim) {
				c.Status, c.Trouble = "warning", "paths warning: packets are lost to 1 of 2 hosts: b (no packet is answered)"
			})
		}, []Rule{NotRecovered}},
		"some of the latest packets to a peer that was cut off were lost": {func(s *story) {
			s.silence("b", 20, 30, CutHost)
			s.claims("a", 55, 56, func(c *Claim) {
				c.Status, c.Trouble = "warning", "paths warning: packets are lost to 1 of 2 hosts: b (4 of the last 20 packets were lost)"
			})
		}, nil},
		"packets are lost to one peer that is cut off, and one that is not": {func(s *story) {
			s.silence("b", 20, 30, CutHost)
			s.claims("a", 28, 34, func(c *Claim) {
				c.Status, c.Trouble = "warning", "paths warning: packets are lost to 2 of 2 hosts: b (no packet is answered), c (no packet is answered)"
			})
		}, []Rule{NotRecovered}},
		"a warning names forged records": {func(s *story) {
			s.Forgeries = []Forgery{{Span: Span{sec(10), sec(20)}, Network: "n"}}
			s.claims("a", 12, 34, func(c *Claim) { c.Status, c.Trouble = "warning", "records warning: 1 record is ignored" })
		}, nil},
		"a stranger holds a lease of a host with its session": {func(s *story) {
			s.Forgeries = []Forgery{{Span{sec(10), sec(13)}, "n", []Entry{{six, "b"}}}}
			s.reads(11, 13, held(one, "a"), held(two, "b"), held(six, "b"))
		}, nil},
		"a host holds a second lease after a stranger has removed his": {func(s *story) {
			s.Forgeries = []Forgery{{Span{sec(10), sec(13)}, "n", []Entry{{six, "b"}}}}
			s.reads(11, 15, held(one, "a"), held(two, "b"), held(six, "b"))
		}, []Rule{OverlapInStore}},
		"agents know a stranger's lease that was removed by hand, and warn of it": {func(s *story) {
			s.Forgeries = []Forgery{{Span{sec(10), sec(13)}, "n", []Entry{{six, "b"}}}}
			s.reads(11, 13, held(one, "a"), held(two, "b"), held(six, "b"))
			s.claims("a", 12, 34, gained(Entry{six, "b"}))
			s.claims("a", 12, 34, func(c *Claim) {
				c.Status, c.Trouble = "warning", `routes warning: 1 peers in place, 1 skipped, the first "b": vtep_mac 0 is that of node b too`
			})
			s.claims("b", 12, 34, func(c *Claim) {
				c.Status, c.Trouble = "warning", "conflict warning: the record of 10.5.6.0/24 names this host (b), and another host holds it"
			})
		}, nil},
		"agents skip a host, and warn of a lease, about which there is no forged record": {func(s *story) {
			s.Forgeries = []Forgery{{Span{sec(10), sec(13)}, "n", []Entry{{six, "c"}}}}
			s.claims("a", 12, 34, func(c *Claim) {
				c.Status, c.Trouble = "warning", `routes warning: 1 peers in place, 1 skipped, the first "b": vtep_mac 0 is that of node b too`
			})
			s.claims("b", 12, 34, func(c *Claim) {
				c.Status, c.Trouble = "warning", "conflict warning: the record of 10.5.7.0/24 names this host (b), and another host holds it"
			})
		}, []Rule{NotRecovered}},
		"an agent sees a lease that no stranger wrote": {func(s *story) {
			s.Forgeries = []Forgery{{Span{sec(10), sec(13)}, "n", []Entry{{six, "c"}}}}
			s.claims("a", 12, 34, gained(Entry{six, "b"}))
		}, []Rule{ViewDiffers}},
		"a warning names records of a network without forged ones": {func(s *story) {
			s.Forgeries = []Forgery{{Span: Span{sec(10), sec(20)}, Network: "other"}}
			s.claims("a", 12, 34, func(c *Claim) { c.Status, c.Trouble = "warning", "records warning: 1 record is ignored" })
		}, []Rule{NotRecovered}},
		"forged records make a host critical": {func(s *story) {
			s.Forgeries = []Forgery{{Span: Span{sec(10), sec(20)}, Network: "n"}}
			s.claims("a", 12, 34, func(c *Claim) { c.Status, c.Trouble = "critical", "lease critical: another host has it" })
		}, []Rule{NotRecovered}},
		"forged records make a host lose its route": {func(s *story) {
			s.Forgeries = []Forgery{{Span: Span{sec(10), sec(20)}, Network: "n"}}
			s.list("a", 12, 14)
		}, []Rule{RouteMissing, RouteRemoved}},
		"Consul fails for a moment": {func(s *story) {
			s.claims("a", 30, 31, func(c *Claim) { c.Status, c.Trouble = "warning", "lease warning: the store is unavailable" })
		}, nil},
		"Consul does not answer for a moment": {func(s *story) {
			s.claims("a", 30, 31, func(c *Claim) {
				c.Status, c.Trouble = "warning", "consul warning: there is no answer to reading the leases"
			})
		}, nil},
		"Consul fails for longer": {func(s *story) {
			s.claims("a", 30, 32, func(c *Claim) { c.Status, c.Trouble = "warning", "lease warning: the store is unavailable" })
		}, []Rule{NotRecovered}},
		"a slow machine is no violation": {func(s *story) {
			s.silence("a", 10, 20, CutHost)
			s.claims("a", 10, 28, func(c *Claim) { c.Status = "warning" })
			s.claims("a", 21, 99, func(c *Claim) { c.Waited = 6 * time.Second })
		}, nil},

		"a route is missing": {func(s *story) { s.list("a", 0, 99) }, []Rule{RouteMissing}},
		"a route goes for a moment": {func(s *story) {
			s.Removals = []Removal{{"a", sec(30.2), two}}
		}, []Rule{RouteRemoved}},
		"routes vanish with their device": {func(s *story) { s.list("a", 30, 31) }, []Rule{RouteMissing, RouteRemoved}},
		"a route goes while the agent is dead": {func(s *story) {
			s.silence("b", 25, 35, KillAgent)
			s.mute("b", 25, 35)
			s.Removals = []Removal{{"a", sec(30.2), two}}
		}, []Rule{RouteRemoved}},
		"a route to a host that was given up goes": {func(s *story) {
			s.silence("b", 5, 99, StopPastHold)
			s.mute("b", 5, 99)
			s.reads(15, 36, held(one, "a"), lapsed(two, "b"))
			s.reads(36, 99, held(one, "a"))
			s.claims("a", 37, 99, func(c *Claim) { c.View = []Entry{{one, "a"}} })
			s.list("a", 37, 99)
		}, nil},

		"a network is switched": {func(s *story) { s.switchAt(20, 25, "udp") }, nil},
		"a network is switched to a backend without a device": {func(s *story) {
			s.switchAt(20, 25, "host-gw")
			for _, node := range []string{"a", "b"} {
				s.devices(node, 21, 26, "n")
				s.devices(node, 26, 99)
			}
		}, nil},
		"a host removes the old device early": {func(s *story) {
			s.switchAt(20, 45, "udp")
			s.devices("a", 35, 99, "n"+otherDevice)
		}, []Rule{DeviceGone}},
		"a host removes the old device, and the store has just lost that the switch has ended": {func(s *story) {
			s.switchAt(20, 37, "udp")
			s.Rewinds = []Rewind{{Span: at(34.5), Why: EmptyStore}}
			s.devices("a", 35, 99, "n"+otherDevice)
		}, nil},
		"a host removes the old device, and the store loses that the switch has ended before it was read": {func(s *story) {
			s.switchAt(20, 37, "udp")
			s.states(35, 37, stateMissing, "")
			s.Rewinds = []Rewind{{Span: Span{sec(35.2), sec(35.2)}, Why: EmptyStore}}
			s.devices("a", 35, 99, "n"+otherDevice)
		}, nil},
		"a host removes the old device early, and the store loses everything": {func(s *story) {
			s.switchAt(20, 45, "udp")
			s.Rewinds = []Rewind{{Span: at(34.5), Why: EmptyStore}}
			s.devices("a", 35, 99, "n"+otherDevice)
		}, []Rule{DeviceGone}},
		"a host keeps the old device": {func(s *story) {
			s.switchAt(20, 25, "udp")
			s.devices("a", 26, 99, "n", "n"+otherDevice)
		}, []Rule{BackendStays}},
		"a host keeps the old device until it is back": {func(s *story) {
			s.switchAt(20, 25, "udp")
			s.silence("a", 24, 40, StopShort)
			s.mute("a", 24, 40)
			s.devices("a", 26, 41, "n", "n"+otherDevice)
			s.states(40, 99, stateDefined, "udp")
		}, nil},
		"a host keeps a route of the old backend": {func(s *story) {
			s.switchAt(20, 25, "udp")
			for i := range s.Routes {
				if l := &s.Routes[i]; l.At >= sec(40) {
					l.Direct = l.To
				}
			}
		}, []Rule{BackendStays}},
		"a host keeps a key": {func(s *story) {
			s.switchAt(20, 25, "wireguard")
			for i := range s.Routes {
				s.Routes[i].Keys = []string{"n" + otherDevice}
				if l := &s.Routes[i]; l.Node == "b" && l.At >= sec(40) {
					l.Keys = []string{"n", "n" + otherDevice}
				}
			}
			for i := range s.Routes {
				if s.Routes[i].At < sec(20) {
					s.Routes[i].Keys = nil
				}
			}
		}, []Rule{BackendStays}},
		"a switch does not end": {func(s *story) {
			for t := 60.0; t < 120; t++ {
				s.claim("a", t, one)
				s.claim("b", t+0.5, two)
				s.read(t+0.25, held(one, "a"), held(two, "b"))
			}
			s.switchAt(20, 200, "udp")
			s.states(20, 200, stateDefined, "udp")
		}, []Rule{SwitchStays}},
		"a switch waits for a host": {func(s *story) {
			for t := 60.0; t < 120; t++ {
				s.claim("a", t, one)
				s.claim("b", t+0.5, two)
				s.read(t+0.25, held(one, "a"), held(two, "b"))
			}
			s.switchAt(20, 200, "udp")
			s.states(20, 200, stateDefined, "udp")
			s.silence("b", 30, 60, StopShort)
			s.mute("b", 30, 60)
		}, nil},

		"a network jumps to another backend": {func(s *story) {
			for i := range s.Reads {
				if r := &s.Reads[i]; r.From >= sec(30) {
					r.Backends = []Backend{{"udp", true}}
				}
			}
			for _, node := range []string{"a", "b"} {
				s.devices(node, 31, 99, "n"+otherDevice)
			}
			s.Removals = []Removal{{"a", sec(31), two}}
			s.Losses = []Loss{{"n", "a", "b", sec(31), false}}
		}, []Rule{RouteRemoved, PingLost}},
		"a ping is lost while an agent that forwards is dead": {func(s *story) {
			s.InProcess = []string{meaning}
			s.silence("b", 25, 35, KillAgent)
			s.mute("b", 25, 35)
			s.Losses = []Loss{{"n", "a", "b", sec(30), false}}
		}, nil},
		"a ping is lost that had no answer yet when an agent that forwards was killed": {func(s *story) {
			s.InProcess = []string{meaning}
			s.silence("b", 25, 35, KillAgent)
			s.mute("b", 25, 35)
			s.Losses = []Loss{{"n", "a", "b", sec(24.9), false}}
		}, nil},
		"a ping is lost before an agent that forwards is killed": {func(s *story) {
			s.InProcess = []string{meaning}
			s.silence("b", 25, 35, KillAgent)
			s.mute("b", 25, 35)
			s.Losses = []Loss{{"n", "a", "b", sec(24.7), false}}
		}, []Rule{PingLost}},
		"a ping is lost where agents forward": {func(s *story) {
			s.InProcess = []string{meaning}
			s.Losses = []Loss{{"n", "a", "b", sec(30), false}}
		}, []Rule{PingLost}},
		"a ping is lost until the next handshake with a host whose agent was replaced": {func(s *story) {
			s.suspendWireGuard("b", 25, 35)
			s.silence("a", 30, 31, KillAgent)
			s.mute("a", 30, 31)
			s.Losses = []Loss{{"n", "a", "b", sec(40), false}}
		}, nil},
		"a ping is lost after the next handshake with a host whose agent was replaced": {func(s *story) {
			s.suspendWireGuard("b", 25, 35)
			s.silence("a", 30, 31, KillAgent)
			s.mute("a", 30, 31)
			s.Losses = []Loss{{"n", "a", "b", sec(42), false}}
		}, []Rule{PingLost}},
		"a ping is lost after a time in which no peer's agent was replaced": {func(s *story) {
			s.suspendWireGuard("b", 25, 35)
			s.silence("a", 20, 21, KillAgent)
			s.mute("a", 20, 21)
			s.Losses = []Loss{{"n", "a", "b", sec(40), false}}
		}, []Rule{PingLost}},
		"a ping is lost": {func(s *story) { s.Losses = []Loss{{"n", "a", "b", sec(30), false}} }, []Rule{PingLost}},
		"a ping is lost to a host whose agent is stopped": {func(s *story) {
			s.silence("b", 25, 35, StopPastTTL)
			s.mute("b", 25, 35)
			s.Losses = []Loss{{"n", "a", "b", sec(30), false}}
		}, []Rule{PingLost}},
		"a ping is lost to a host that came back while the other one's agent was stopped": {func(s *story) {
			givenUp(s)
			s.silence("a", 25, 45, StopPastTTL)
			s.mute("a", 25, 45)
			s.Losses = []Loss{{"n", "a", "b", sec(40), false}}
		}, nil},
		"a ping is lost after an address changed while the other one's agent was stopped": {func(s *story) {
			s.silence("b", 11, 11.1, ChangeAddress)
			s.silence("a", 10, 28, StopPastTTL)
			s.mute("a", 10, 28)
			s.Losses = []Loss{{"n", "a", "b", sec(27), false}, {"n", "b", "a", sec(29), false}}
		}, nil},
		"a ping is lost long after an address changed": {func(s *story) {
			s.silence("b", 11, 11.1, ChangeAddress)
			s.Losses = []Loss{{"n", "a", "b", sec(46), false}}
		}, []Rule{PingLost}},
		"a ping is lost to a host that came back": {func(s *story) {
			givenUp(s)
			s.Losses = []Loss{{"n", "a", "b", sec(40), false}}
		}, []Rule{PingLost}},
		"a ping is lost to a host that is cut off": {func(s *story) {
			s.silence("b", 25, 35, CutHost)
			s.Losses = []Loss{{"n", "a", "b", sec(30), false}}
		}, nil},
	} {
		t.Run(name, c.test)
	}
}

// A tale is a change of a quiet minute and the rules that are broken then.
type tale struct {
	change func(*story)
	want   []Rule
}

func (c tale) test(t *testing.T) {
	s := quiet()
	c.change(s)
	var got []Rule
	found := Check(s.History)
	for _, v := range found {
		if !slices.Contains(got, v.Rule) {
			got = append(got, v.Rule)
		}
		if v.Node+v.Network == "" || v.Text == "" || v.Count == 0 || !strings.Contains(v.String(), string(v.Rule)) {
			t.Errorf("violation says too little: %+v", v)
		}
	}
	slices.Sort(got)
	want := slices.Sorted(slices.Values(c.want))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules broken (-want +got):\n%s%v", diff, found)
	}
}

// gain adds an entry to a view.
func gain(c *Claim) { gained(Entry{six, "c"})(c) }

func gained(e Entry) func(*Claim) {
	return func(c *Claim) { c.View = append(slices.Clone(c.View), e) }
}
