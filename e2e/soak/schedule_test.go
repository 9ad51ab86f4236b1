package soak

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/e2e/lab"
)

func tenMinutes(seed uint64) plan {
	return plan{
		Seed: seed, For: 10 * time.Minute, Agents: 30, Carries: func(host int) bool { return host < 3 },
		Rules: Rules{TTL: 10 * time.Second, Hold: 30 * time.Second, Settle: 10 * time.Second},
	}
}

// TestSchedule checks the schedules of many seeds: they are feasible, contain every kind of fault,
// and are the same for the same seed.
func TestSchedule(t *testing.T) {
	for _, store := range []string{lab.StoreConsul, lab.StoreEtcd} {
		t.Run(store, func(t *testing.T) { checkSchedules(t, store) })
	}
	if cmp.Equal(schedule(tenMinutes(1)), schedule(tenMinutes(2))) {
		t.Error("two seeds make one schedule")
	}
}

func checkSchedules(t *testing.T, kind string) {
	p := tenMinutes(0)
	p.Store = kind
	for seed := range uint64(200) {
		p.Seed = seed
		steps := schedule(p)
		if diff := cmp.Diff(steps, schedule(p)); diff != "" {
			t.Fatalf("seed %d makes two schedules:\n%s", seed, diff)
		}
		if !slices.IsSortedFunc(steps, func(a, b Step) int { return int(a.At - b.At) }) {
			t.Fatalf("seed %d: not in order", seed)
		}
		busy := map[int]time.Duration{}
		defined := map[string]bool{}
		for _, n := range allNetworks() {
			defined[n.name] = true
		}
		kinds := map[Kind]int{}
		var store, server time.Duration
		saved := false
		for _, s := range steps {
			kinds[s.Kind]++
			if s.End() > p.For || s.Round < 1 {
				t.Errorf("seed %d: %+v is not within the run", seed, s)
			}
			if s.Host >= 0 {
				if s.At < busy[s.Host] {
					t.Errorf("seed %d: %+v begins while another is on the host", seed, s)
				}
				if onCarrier(s.Kind) && !p.Carries(s.Host) {
					t.Errorf("seed %d: %+v is on a host without packets", seed, s)
				}
				if offCarrier(s.Kind) && p.Carries(s.Host) {
					t.Errorf("seed %d: %+v takes a host with containers away", seed, s)
				}
				busy[s.Host] = s.End() + p.Rules.Settle
				continue
			}
			switch s.Kind {
			case DefineNetwork, EmptyAndDefine:
				if defined[s.Network] {
					t.Errorf("seed %d: %+v defines what is defined", seed, s)
				}
				defined[s.Network] = s.Network != aside
			case DeleteNetwork, DeleteWhileAway, EmptyAndDelete:
				if !defined[s.Network] || findNetwork(s.Network).origin != temporary {
					t.Errorf("seed %d: %+v deletes what has to stay", seed, s)
				}
				defined[s.Network] = false
			case LoseNetwork, ChangeNetwork, RewriteNetwork, RestoreBad, ForgeRecords, RevokeLease, SwitchBackend, StopSwitch, ReverseSwitch, RotateKeys, StartInSwitch:
				if !defined[s.Network] {
					t.Errorf("seed %d: %+v is on a network that is not defined", seed, s)
				}
			default:
				if s.Network != "" {
					t.Errorf("seed %d: %+v is on a network", seed, s)
				}
			}
			if s.At < store {
				t.Errorf("seed %d: %+v begins before the last has ended", seed, s)
			}
			store = s.End()
			if (s.Kind == RestoreStore || s.Kind == StartInLoss) && !saved {
				t.Errorf("seed %d: nothing to restore", seed)
			}
			saved = saved || s.Kind == SaveStore
			if onServers(s.Kind) {
				if s.At < server {
					t.Errorf("seed %d: %+v leaves the servers no time", seed, s)
				}
				server = s.End() + serverPause
			}
		}
		hosts, all, network := Kinds(p.Store)
		for _, k := range slices.Concat(hosts, all, network, []Kind{SaveStore}) {
			if kinds[k] == 0 {
				t.Errorf("seed %d has no %s", seed, k)
			}
		}
	}
}

// TestScheduleOfRounds checks that faults on the store and on networks can be chosen.
func TestScheduleOfRounds(t *testing.T) {
	p := tenMinutes(1)
	p.Rounds = []Kind{SwitchBackend, RotateKeys}
	kinds := map[Kind]int{}
	for _, s := range schedule(p) {
		if s.Host < 0 {
			kinds[s.Kind]++
		}
		if switches(s.Kind) && !findNetwork(s.Network).carries {
			t.Errorf("%+v is on a network without packets", s)
		}
	}
	if len(kinds) != 3 || kinds[SwitchBackend] < 5 || kinds[RotateKeys] < 5 || kinds[SaveStore] == 0 {
		t.Error(kinds)
	}
}

// TestPastHold checks that the longest stop is longer than a session and hold together.
func TestPastHold(t *testing.T) {
	p := tenMinutes(1)
	for _, s := range schedule(p) {
		if s.Kind == StopPastHold && s.For <= 2*p.Rules.TTL+p.Rules.Hold {
			t.Errorf("%+v is too short", s)
		}
	}
}
