package retry

import "time"

// A Policy says how patient an agent is with the store.
type Policy struct {
	// The pauses of a Loop have full jitter: each is a random time up to a limit that doubles from First to Last, and
	// at least a tenth of that limit. The limit is at most Soon when the store answers but the request cannot be
	// fulfilled yet.
	First, Last, Soon time.Duration

	// During an outage, one request at a time probes the store, for at most Ask. Before each probe there is a random
	// pause between ProbeLeast and ProbeMost.
	ProbeLeast, ProbeMost, Ask time.Duration

	// When the store is back, each Loop continues at a random time within Spread.
	Spread time.Duration

	// A Loop also continues within Spread, at most once in Early, when the store answers a probe right after the
	// Loop's request was not answered. The request may have begun in an outage in which the Loop's pauses have grown.
	Early time.Duration

	// A host restores a network definition that the store has lost within RestoreInUse if the network is in use, and
	// after RestoreRemembered, with a random time up to as long added, if the host only remembers it.
	RestoreInUse, RestoreRemembered time.Duration
}

// CallTimeout bounds one short request to the store. Without a leader, Consul answers after up to 12 s.
const CallTimeout = 15 * time.Second

// DefaultPolicy returns the policy of an agent. Every Loop asks again within ProbeMost + Spread = 7 s of the store's
// return, so that all is as before within 10 s, while agents that lost the store together come back spread over those
// 7 s.
//
// An agent has at most 2 loops that ask the store and 4 more for each network. In a long outage each of them asks once
// in 16.5 s on average and never more than once in 3 s. Where requests hang for longer than calmAfter, the pauses stay
// short, and a loop asks whenever a request ends, which is after 7 s or more. The probe asks once in 2.5 s on average
// and never more than once in 1 s. With the default lease.ttl, an agent in one network therefore sends 0.8 requests
// per second on average and 3 at most; with a shorter one, renewals are tried within a quarter of renew_margin each.
func DefaultPolicy() Policy {
	return Policy{
		First:             time.Second,
		Last:              30 * time.Second,
		Soon:              6 * time.Second,
		ProbeLeast:        time.Second,
		ProbeMost:         4 * time.Second,
		Ask:               3 * time.Second,
		Spread:            3 * time.Second,
		Early:             2 * time.Minute,
		RestoreInUse:      time.Second,
		RestoreRemembered: 5 * time.Second,
	}
}
