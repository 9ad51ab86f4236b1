package soak

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

var inner6 = netip.MustParsePrefix("fd00:5:0:1::/64") // the IPv6 subnet of a

func (s *story) disturb(node string, from, to float64, why Kind, network string) {
	s.Disturbances = append(s.Disturbances, Disturbance{Node: node, Span: Span{sec(from), sec(to)}, Why: why, Network: network})
}

// firewalls adds looks at the rules of a, with a number of jumps and of foreign rules.
func (s *story) firewalls(from, to float64, jumps, foreign int) {
	for t := from; t < to; t++ {
		s.Firewalls = append(s.Firewalls, Jumps{"a", sec(t), map[string]int{forwardJump: jumps}, foreign})
	}
}

// mtus sets the MTU of the underlay of a in a time, that of its device, and that of the route of b to it.
func (s *story) mtus(from, to float64, underlay, device, route int) {
	for i := range s.Routes {
		l := &s.Routes[i]
		switch {
		case l.At < sec(from) || l.At >= sec(to):
		case l.Node == "a":
			l.UnderlayMTU, l.DeviceMTUs = underlay, map[string]int{"n": device}
		default:
			l.MTUs = map[netip.Prefix]int{one: route}
		}
	}
}

// detour makes a routing rule take packets of a from 20 to 50. Its agent names the rule in a time.
func (s *story) detour(network string, from, to float64) {
	s.disturb("a", 20, 50, RoutingRule, network)
	if network == "" {
		s.Disturbances[len(s.Disturbances)-1].Peer = "b"
	}
	s.claims("a", from, to, func(c *Claim) {
		c.Status = "critical"
		c.Trouble = "routes critical: a routing rule that is not leno's takes precedence, 5270: from all lookup 52"
	})
}

// inBothFamilies gives a an IPv6 subnet, which it lacks in a time.
func (s *story) inBothFamilies(from, to float64) {
	s.claims("a", 0, 99, func(c *Claim) { c.Subnets, c.File = []netip.Prefix{one, inner6}, []netip.Prefix{one, inner6} })
	s.claims("a", from, to, func(c *Claim) {
		c.Subnets, c.File, c.Status, c.Trouble = []netip.Prefix{one}, []netip.Prefix{one}, "warning", "device warning: IPv6 is disabled"
	})
	s.list("b", 0, 99, one, inner6)
	s.list("b", from, to, one)
}

// reboot makes b boot from 25 to 30 in a switch. Its agent says that it is ready at 32, and its routes are back at the given time.
func (s *story) reboot(routes float64) {
	s.switchAt(20, 50, "udp")
	s.silence("b", 25, 30, StartInSwitch)
	s.mute("b", 25, 30)
	s.claims("b", 30, 99, func(c *Claim) { c.Process = 2 })
	s.claims("b", 32, 99, func(c *Claim) { c.Ready = true })
	s.list("b", 25, routes)
	s.devices("b", 25, 31)
}

func TestCheckDisturbances(t *testing.T) {
	for name, c := range map[string]tale{
		"an attacker achieves nothing": {func(s *story) {
			s.Attacks = []Attack{{"a", "n", Span{sec(20), sec(30)}, 100, []time.Duration{sec(25)}, 0, 0}}
			s.disturb("a", 20, 30, AttackPeers, "")
		}, nil},
		"a forged packet arrives": {func(s *story) {
			s.Attacks = []Attack{{"a", "n", Span{sec(20), sec(30)}, 100, []time.Duration{sec(25)}, 1, 0}}
		}, []Rule{ForgedArrived}},
		"an attacker receives tunnel packets": {func(s *story) {
			s.Attacks = []Attack{{"a", "n", Span{sec(20), sec(30)}, 100, []time.Duration{sec(25)}, 0, 1}}
		}, []Rule{ForgedArrived}},
		"a ping is lost beside an attacker": {func(s *story) {
			s.disturb("a", 20, 40, AttackPeers, "")
			s.Losses = []Loss{{"n", "a", "b", sec(30), false}}
		}, []Rule{PingLost}},

		"a ping is lost when the connection tracking of its host is emptied": {func(s *story) {
			s.Attacks = []Attack{{"a", "n", Span{sec(20), sec(30)}, 100, []time.Duration{sec(25)}, 0, 0}}
			s.Losses = []Loss{{"n", "b", "a", sec(25.1), false}}
		}, nil},
		"a ping is lost after the connection tracking of its host was emptied": {func(s *story) {
			s.Attacks = []Attack{{"a", "n", Span{sec(20), sec(30)}, 100, []time.Duration{sec(25)}, 0, 0}}
			s.Losses = []Loss{{"n", "b", "a", sec(25.3), false}}
		}, []Rule{PingLost}},

		"another program adds rules": {func(s *story) {
			s.disturb("a", 20, 40, ForeignRules, "")
			s.firewalls(0, 20, 1, 0)
			s.firewalls(21, 40, 1, foreignCount)
			s.firewalls(41, 60, 1, 0)
		}, nil},
		"a jump is written again": {func(s *story) { s.firewalls(30, 32, 2, 0) }, []Rule{JumpsDiffer}},
		"a jump is gone":          {func(s *story) { s.firewalls(30, 32, 0, 0) }, []Rule{JumpsDiffer}},
		"a rule of another program is gone": {func(s *story) {
			s.disturb("a", 20, 40, ForeignRules, "")
			s.firewalls(30, 31, 1, foreignCount-1)
		}, []Rule{JumpsDiffer}},
		"an agent is not well beside rules of another program": {func(s *story) {
			s.disturb("a", 20, 40, ForeignRules, "")
			s.claims("a", 30, 31, func(c *Claim) { c.Status, c.Trouble = "warning", "firewall warning: unknown" })
		}, []Rule{NotRecovered}},

		"a routing rule is named":                   {func(s *story) { s.detour("n", 24, 52) }, nil},
		"a routing rule is not named in time":       {func(s *story) { s.detour("n", 28, 50) }, []Rule{DetourUnnamed}},
		"a routing rule is not named until its end": {func(s *story) { s.detour("", 24, 40) }, []Rule{DetourUnnamed}},
		"a routing rule is named after its end":     {func(s *story) { s.detour("n", 24, 99) }, []Rule{NotRecovered}},
		"a routing rule of another network":         {func(s *story) { s.detour("other", 20, 20) }, nil},
		"a routing rule for a host that is not in the network": {func(s *story) {
			s.detour("", 20, 20)
			s.Disturbances[0].Peer = "elsewhere"
		}, nil},
		"a routing rule for the address of a neighbour with host-gw": {func(s *story) {
			s.detour("", 20, 20)
			for i := range s.Reads {
				s.Reads[i].Backends = []Backend{{"host-gw", false}}
			}
			s.devices("a", 0, 99)
			s.devices("b", 0, 99)
		}, nil},
		"pings are lost because of a routing rule": {func(s *story) {
			s.detour("n", 24, 50)
			s.Losses = []Loss{{"n", "b", "a", sec(21), false}, {"n", "a", "b", sec(49), false}, {"n", "a", "b", sec(52), false}}
		}, nil},
		"a ping is lost after a routing rule": {func(s *story) {
			s.detour("n", 24, 50)
			s.Losses = []Loss{{"n", "a", "b", sec(54), false}}
		}, []Rule{PingLost}},
		"a ping in the other family is lost during a routing rule": {func(s *story) {
			s.detour("n", 24, 50)
			s.Losses = []Loss{{"n", "a", "b", sec(30), true}}
		}, []Rule{PingLost}},
		"a route goes during a routing rule": {func(s *story) {
			s.detour("n", 24, 50)
			s.Removals = []Removal{{"a", sec(30.2), two}}
		}, []Rule{RouteRemoved}},

		"a host is without IPv6": {func(s *story) {
			s.disturb("a", 20, 40, DisableIPv6, "")
			s.inBothFamilies(22, 43)
			s.Removals = []Removal{{"b", sec(22), inner6}}
			s.Losses = []Loss{{"n", "a", "b", sec(30), true}, {"n", "b", "a", sec(43), true}}
		}, nil},
		"a host loses IPv6 without a cause": {func(s *story) { s.inBothFamilies(22, 43) }, []Rule{Moved, MovedSilently, NotRecovered}},
		"a host without IPv6 does not get it back": {func(s *story) {
			s.disturb("a", 20, 40, DisableIPv6, "")
			s.inBothFamilies(22, 99)
		}, []Rule{NotRecovered}},
		"a host without IPv6 loses IPv4": {func(s *story) {
			s.disturb("a", 20, 40, DisableIPv6, "")
			s.Removals = []Removal{{"b", sec(30.2), one}}
			s.Losses = []Loss{{"n", "a", "b", sec(30), false}}
		}, []Rule{RouteRemoved, PingLost}},
		"IPv6 is lost after the settling time": {func(s *story) {
			s.disturb("a", 20, 30, DisableIPv6, "")
			s.Losses = []Loss{{"n", "a", "b", sec(40), true}}
		}, []Rule{PingLost}},

		"MTUs follow": {func(s *story) {
			s.disturb("a", 20, 40, ChangeMTU, "")
			s.mtus(0, 22, 1500, 1450, 1450)
			s.mtus(20, 22, 1400, 1450, 1450)
			s.mtus(22, 42, 1400, 1350, 1350)
			s.mtus(40, 43, 1500, 1350, 1350)
			s.mtus(43, 99, 1500, 1450, 1450)
		}, nil},
		"a device does not follow": {func(s *story) {
			s.disturb("a", 20, 40, ChangeMTU, "")
			s.mtus(20, 40, 1400, 1450, 1350)
		}, []Rule{MTUStays}},
		"a device stays small": {func(s *story) {
			s.disturb("a", 20, 40, ChangeMTU, "")
			s.mtus(40, 99, 1500, 1350, 1350)
		}, []Rule{MTUStays}},
		"a route does not follow": {func(s *story) {
			s.disturb("a", 20, 40, ChangeMTU, "")
			s.mtus(20, 40, 1400, 1350, 1450)
		}, []Rule{MTUStays}},
		"a ping is lost while an MTU changes": {func(s *story) {
			s.disturb("a", 20, 40, ChangeMTU, "")
			s.Losses = []Loss{{"n", "a", "b", sec(20), false}}
		}, []Rule{PingLost}},

		"a host boots in a switch": {func(s *story) {
			s.reboot(31.9)
			s.Devices = []DeviceLoss{{"b", "n", sec(25)}}
			s.Losses = []Loss{{"n", "a", "b", sec(26), false}, {"n", "b", "a", sec(34), false}}
		}, nil},
		"a host that boots in a switch is ready too early": {func(s *story) { s.reboot(33) }, []Rule{ReadyEarly}},
		"a host that boots in a switch is not reached": {func(s *story) {
			s.reboot(31.9)
			s.Losses = []Loss{{"n", "a", "b", sec(36), false}}
		}, []Rule{PingLost}},
		"a peer of a host that boots removes its route": {func(s *story) {
			s.reboot(31.9)
			s.Removals = []Removal{{"a", sec(27), two}}
		}, []Rule{RouteRemoved}},
		"a host that restarts is ready too early": {func(s *story) {
			s.silence("b", 25, 30, KillAgent)
			s.mute("b", 25, 30)
			s.claims("b", 30, 99, func(c *Claim) { c.Process, c.Ready = 2, true })
			s.list("b", 29, 32)
		}, []Rule{ReadyEarly, RouteRemoved}},
		"the store is set back while a host starts": {func(s *story) {
			s.reboot(33)
			s.Rewinds = []Rewind{{Span: at(31), Why: EmptyStore}}
		}, nil},
	} {
		t.Run(name, c.test)
	}
}

// TestJumps reads the rules of a host.
func TestJumps(t *testing.T) {
	got := jumpsIn(`table ip filter {
	chain LENO-FORWARD {
		ip saddr 10.5.0.0/16 counter packets 3 bytes 252 accept
	}

	chain FORWARD {
		type filter hook forward priority filter; policy accept;
		ct state vmap { established : accept, related : accept } comment "soak"
		counter packets 3 bytes 252 jump LENO-FORWARD
		counter packets 0 bytes 0 jump LENO-FORWARD
		counter packets 0 bytes 0 jump DOCKER
	}
}
table ip6 filter {
	chain FORWARD {
		counter packets 3 bytes 252 jump LENO-FORWARD
	}
}
`)
	compare(t, got, Jumps{Count: map[string]int{forwardJump: 2, "ip6 filter FORWARD LENO-FORWARD": 1}, Foreign: 1})
}

// TestOnCarriers checks that the suite knows which faults need a host that carries packets.
func TestOnCarriers(t *testing.T) {
	hosts, _, _ := consulKinds()
	n := 0
	for _, k := range hosts {
		if onCarrier(k) {
			n++
		}
	}
	if n != 6 || slices.ContainsFunc([]Kind{KillAgent, CutHost, ReplaceHost}, onCarrier) {
		t.Error(n)
	}
}

// TestWithinSettling checks that faults of which agents say something last longer than the settling time.
func TestWithinSettling(t *testing.T) {
	p := tenMinutes(1)
	for _, s := range schedule(p) {
		if onCarrier(s.Kind) && s.For <= p.Rules.Settle+time.Second {
			t.Errorf("%+v is too short", s)
		}
	}
}
