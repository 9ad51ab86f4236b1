package soak

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// A Step is one fault of a schedule.
type Step struct {
	At      time.Duration // earliest time, since the start of the faults
	For     time.Duration // time until it is undone; 0 if it is over at once
	Kind    Kind
	Host    int    // its index, or -1 for faults on the store
	Network string // its name, or "" for faults on hosts or the whole store
	// Pick makes choices whose alternatives the schedule cannot know: a server among the suitable
	// ones, or one of a host's networks.
	Pick int
	// Round is the round to which it belongs, counted from 1.
	Round int
}

// End returns when it is planned to be undone.
func (s Step) End() time.Duration { return s.At + s.For }

// A plan is the input of a schedule. The same plan makes the same schedule.
type plan struct {
	Seed    uint64
	Store   string // lab.StoreConsul or lab.StoreEtcd
	Rounds  []Kind
	For     time.Duration // the last fault has ended by then
	Agents  int
	Carries func(host int) bool
	Rules   Rules
}

const (
	// serverPause is the time that three servers need between two faults. Earlier, a second fault
	// would lose the quorum, because the first server would not be back yet.
	serverPause = 15 * time.Second
	// comeBack is the planned maximum time in which a server starts.
	comeBack = 4 * time.Second
)

// A deck deals kinds so that each comes once before any comes again.
type deck struct {
	random *rand.Rand
	all    []Kind
	left   []Kind
}

// deal returns the next kind that fits. At least one must fit.
func (d *deck) deal(fits func(Kind) bool) Kind {
	for {
		if i := slices.IndexFunc(d.left, fits); i >= 0 {
			k := d.left[i]
			d.left = slices.Delete(d.left, i, i+1)
			return k
		}
		more := slices.Clone(d.all)
		d.random.Shuffle(len(more), func(i, j int) { more[i], more[j] = more[j], more[i] })
		d.left = append(d.left, more...)
	}
}

// schedule returns the faults of a run in the order in which they begin. Faults on the store and on
// networks come one after another, one per round, with time to settle between them. Faults on hosts
// overlap with them, never two at once on one host, and may span several rounds.
func schedule(p plan) []Step {
	s := &scheduler{plan: p, random: rand.New(rand.NewPCG(p.Seed, 0)), busy: make([]time.Duration, p.Agents)}
	hosts, store, network := Kinds(p.Store)
	s.store = deck{random: s.random, all: slices.Concat(store, network)}
	if len(p.Rounds) > 0 {
		s.store.all = p.Rounds
	}
	s.hosts = deck{random: s.random, all: hosts}
	for _, n := range allNetworks() {
		s.defined = append(s.defined, n.name)
	}
	saved := -1
	for round, at := 1, time.Duration(0); ; round++ {
		kind := s.store.deal(s.possible)
		length := s.length(kind)
		begin := at + s.between(time.Second, 3*time.Second)
		pause := p.Rules.Settle + s.between(0, 3*time.Second)
		if onServers(kind) {
			pause = serverPause + comeBack + s.between(0, 3*time.Second)
			if kind == CutServer {
				pause += length // until everything in transit has arrived
			}
		}
		if begin+length > p.For {
			break
		}
		if saved < 0 || saved < round-3 {
			s.add(Step{At: at, Kind: SaveStore, Host: -1, Round: round})
			saved = round
		}
		s.add(Step{At: begin, For: length, Kind: kind, Host: -1, Network: s.network(kind), Pick: s.random.IntN(1 << 16), Round: round})
		next := begin + length + pause
		for range 2 + s.random.IntN(1+p.Agents/4) {
			s.onHost(round, at, min(next, p.For)-at)
		}
		at = next
	}
	slices.SortStableFunc(s.steps, func(a, b Step) int { return cmp.Compare(a.At, b.At) })
	return s.steps
}

type scheduler struct {
	plan
	random       *rand.Rand
	store, hosts deck
	busy         []time.Duration // when each host is free and has settled
	defined      []string        // networks that are defined, by plan
	steps        []Step
}

func (s *scheduler) add(step Step) { s.steps = append(s.steps, step) }

// comeAndGo returns the networks that are defined and deleted during a run: those that are defined
// at this point of the schedule, and the others.
func (s *scheduler) comeAndGo() (defined, deleted []string) {
	for _, n := range allNetworks() {
		switch {
		case n.origin != temporary:
		case slices.Contains(s.defined, n.name):
			defined = append(defined, n.name)
		default:
			deleted = append(deleted, n.name)
		}
	}
	return defined, deleted
}

// possible reports whether there is a network for a fault.
func (s *scheduler) possible(k Kind) bool {
	defined, deleted := s.comeAndGo()
	switch k {
	case DefineNetwork:
		return len(deleted) > 0
	case DeleteNetwork, DeleteWhileAway, EmptyAndDelete:
		return len(defined) > 0
	}
	return true
}

// network chooses the network for a fault, or "" if the fault is not on a network.
func (s *scheduler) network(k Kind) string {
	defined, deleted := s.comeAndGo()
	choose := func(of []string) string { return of[s.random.IntN(len(of))] }
	switch k {
	case DefineNetwork, EmptyAndDefine:
		if len(deleted) == 0 {
			return aside
		}
		name := choose(deleted)
		s.defined = append(s.defined, name)
		return name
	case DeleteNetwork, DeleteWhileAway, EmptyAndDelete:
		name := choose(defined)
		s.defined = slices.DeleteFunc(s.defined, func(n string) bool { return n == name })
		return name
	case SwitchBackend, StopSwitch, ReverseSwitch, RotateKeys, StartInSwitch:
		return choose(slices.DeleteFunc(slices.Clone(s.defined), func(n string) bool { return !findNetwork(n).carries }))
	case LoseNetwork, ChangeNetwork, RewriteNetwork, RestoreBad, ForgeRecords:
		return choose(s.defined)
	case RevokeLease:
		return choose(slices.DeleteFunc(slices.Clone(s.defined), func(n string) bool { return findNetwork(n).carries }))
	}
	return ""
}

// onHost adds a fault on a host that is free within the round, so that the fault ends by the end of
// the run. Without such a host it adds none.
func (s *scheduler) onHost(round int, begin, within time.Duration) {
	kind := s.hosts.deal(func(Kind) bool { return true })
	length := s.length(kind)
	at := begin + s.between(0, within/2)
	var free []int
	for host, busy := range s.busy {
		if busy <= at && !(offCarrier(kind) && s.Carries(host)) && !(onCarrier(kind) && !s.Carries(host)) {
			free = append(free, host)
		}
	}
	if len(free) == 0 || at+length > s.For {
		s.hosts.left = append(s.hosts.left, kind) // use it another time
		return
	}
	host := free[s.random.IntN(len(free))]
	s.busy[host] = at + length + s.Rules.Settle
	s.add(Step{At: at, For: length, Kind: kind, Host: host, Pick: s.random.IntN(1 << 16), Round: round})
}

// length returns how long a fault of a kind lasts.
func (s *scheduler) length(k Kind) time.Duration {
	lapse := 2 * s.Rules.TTL // when Consul ends a session that is not renewed
	switch k {
	case KillAgent, SetClock:
		return s.between(time.Second, 8*time.Second)
	case RestartAgent:
		return s.between(0, 4*time.Second)
	case StopShort:
		return s.between(2*time.Second, s.Rules.TTL-2*time.Second)
	case StopPastTTL:
		return lapse + s.between(time.Second, 5*time.Second)
	case StopPastHold:
		// Other hosts look every 10 to 30 s for leases past their hold time, so the slot is usually
		// free before its host is back.
		return lapse + s.Rules.Hold + s.between(10*time.Second, 45*time.Second)
	case CutHost:
		return s.between(4*time.Second, 25*time.Second)
	case LeaveClient:
		return s.between(time.Second, 6*time.Second)
	case RevokeToken, RevokeTokens:
		return s.between(4*time.Second, 16*time.Second)
	case ReplaceHost:
		return lapse // the old host's address is in use as long as its session lives
	case KillLeader:
		return s.between(3*time.Second, 8*time.Second)
	case LoseQuorum, KillServers:
		return s.between(6*time.Second, 20*time.Second)
	case CutServer:
		return s.between(6*time.Second, 15*time.Second)
	case Compact:
		return s.between(4*time.Second, 20*time.Second)
	case RoutingRule: // longer than the settling time, in which the agent has to find it
		return pace + s.between(10*time.Second, 20*time.Second)
	case ForeignRules, DisableIPv6, ChangeMTU, AttackPeers, ChangeAddress:
		return pace + s.between(4*time.Second, 15*time.Second)
	case LeaveNetwork:
		return s.between(4*time.Second, 25*time.Second)
	case ForgeRecords: // shorter than the settling time, for which views may lack a record
		return s.between(4*time.Second, 9*time.Second)
	case StartInLoss:
		return s.between(0, lapse)
	case RestoreBad, EmptyAndDefine, StopSwitch, StartInSwitch, RestartAll:
		return s.between(3*time.Second, 8*time.Second)
	case ReverseSwitch:
		return s.between(0, 4*time.Second) // until it is reversed
	}
	return 0
}

func (s *scheduler) between(a, b time.Duration) time.Duration {
	return (a + time.Duration(s.random.Int64N(int64(b-a)+1))).Round(time.Millisecond)
}

// onServers reports whether a fault on the store disables servers.
func onServers(k Kind) bool {
	return k == KillLeader || k == LoseQuorum || k == KillServers || k == CutServer
}
