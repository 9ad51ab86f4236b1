package soak

import (
	"context"
	"errors"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

// onStore makes one fault on the store or a network, and undoes it. An error means that no further
// fault is possible.
func (r *run) onStore(ctx context.Context, s Step) error {
	if s.Kind != SaveStore {
		what := string(s.Kind)
		if s.Network != "" {
			what += " " + s.Network
		}
		r.begin(s, "%s for %s", what, s.For)
	}
	err := guarded(func() error { return r.disturbStore(ctx, s) })
	if ctx.Err() != nil || errors.Is(err, errStore) {
		return err
	}
	if err != nil {
		r.trouble("%s: %v", s.Kind, err)
		if err := r.repairServers(ctx); err != nil {
			return err
		}
	}
	r.say("round %d: %s is over", s.Round, s.Kind)
	return nil
}

func (r *run) disturbStore(ctx context.Context, s Step) error {
	switch s.Kind {
	case KillLeader, LoseQuorum, KillServers, CutServer:
		return r.onServers(ctx, s)
	case RevokeTokens:
		calm := r.storm(s.Kind)
		defer calm()
		err := between(ctx, s.For,
			func(ctx context.Context) error { return r.setTokens(ctx, +1) },
			func(ctx context.Context) error { return r.setTokens(ctx, -1) })
		return errors.Join(err, r.awaitEveryone(ctx))
	case SaveStore:
		saved, err := r.save(ctx)
		if err == nil {
			r.snapshot = saved
		}
		return err
	case RestoreStore:
		return r.restore(ctx, s.Kind, r.snapshot)
	case RestoreOldest:
		return r.restore(ctx, s.Kind, r.oldest)
	case RestoreBad:
		return r.restoreBad(ctx, s)
	case Compact:
		return r.compact(ctx, s)
	case EmptyStore:
		return r.empty(ctx, s.Kind)
	case EmptyAndDefine, EmptyAndDelete:
		return r.emptyAnd(ctx, s)
	case EmptyAndRestart:
		if err := r.empty(ctx, s.Kind); err != nil {
			return err
		}
		return r.withAgentsDown(ctx, s, func(context.Context) error { return nil })
	case StartInLoss:
		return r.startInLoss(ctx, s)
	case RestartAll:
		return r.restartAll(ctx, s)
	}
	return r.onNetwork(ctx, s)
}

// onServers disables servers and repairs them.
func (r *run) onServers(ctx context.Context, s Step) error {
	leader, err := r.store.leader(ctx)
	if err != nil {
		return err
	}
	n := len(r.StoreServers)
	victims := []lab.Store{r.StoreServers[leader]}
	switch s.Kind {
	case CutServer:
		victims[0] = r.StoreServers[s.Pick%n]
	case KillServers:
		victims = r.StoreServers
	case LoseQuorum:
		victims = append(victims, r.StoreServers[(leader+1+s.Pick%(n-1))%n])
	}
	calm := r.storm(s.Kind)
	defer calm()
	for _, v := range victims {
		if s.Kind == CutServer {
			err = v.Cut(ctx)
		} else {
			err = v.Kill()
		}
		if err != nil {
			return errors.Join(err, r.repairServers(ctx))
		}
	}
	if err := sleep(ctx, s.For); err != nil {
		return err
	}
	if err := r.repairServers(ctx); err != nil {
		return err
	}
	if s.Kind == CutServer {
		// Servers retransmit what was in progress only later: TCP doubles its timeout each time, so it
		// can take as long as the cut lasted.
		return sleep(ctx, s.For)
	}
	return nil
}

// emptyAnd empties the store and immediately defines or deletes a network other than those that
// must come back.
func (r *run) emptyAnd(ctx context.Context, s Step) error {
	if err := r.empty(ctx, s.Kind); err != nil {
		return err
	}
	if s.Kind == EmptyAndDelete {
		return r.deleteNetwork(ctx, s.Network)
	}
	if err := r.defineNetwork(ctx, s.Network, s.Pick); err != nil || s.Network != aside {
		return err
	}
	if err := sleep(ctx, s.For); err != nil {
		return err
	}
	return r.deleteNetwork(ctx, s.Network)
}

// restoreBad sets the store back to a snapshot with invalid records, and removes those a while
// later, as an operator would.
func (r *run) restoreBad(ctx context.Context, s Step) error {
	calm := r.storm(s.Kind)
	defer calm()
	bad, err := r.chooseBadRecords(ctx, s)
	if err != nil {
		return err
	}
	err = r.putBad(ctx, bad)
	var saved snapshot
	if err == nil {
		saved, err = r.save(ctx)
	}
	if err = errors.Join(err, r.putGood(ctx, bad, false)); err != nil {
		return err
	}
	if err := sleep(ctx, time.Duration(1+s.Pick%3)*time.Second); err != nil {
		return err
	}
	if err := r.restore(ctx, s.Kind, saved); err != nil {
		return errors.Join(err, r.putGood(ctx, bad, false))
	}
	if err := sleep(ctx, s.For); err != nil {
		return err
	}
	return r.putGood(ctx, bad, s.Pick%2 == 0)
}

// compact discards the history of the records while up to three hosts are cut off, so that their
// agents miss changes of which no trace is left.
func (r *run) compact(ctx context.Context, s Step) error {
	return r.silencing(ctx, s, (*machine).cut, (*machine).mendCut, func(ctx context.Context) error {
		if err := sleep(ctx, s.For); err != nil {
			return err
		}
		err := r.onLeader(ctx, "discard its history", r.store.compact)
		r.record(func(h *History) { h.Compactions = append(h.Compactions, r.now()) })
		return err
	})
}

func (m *machine) cut(ctx context.Context) error     { return m.Cut(ctx) }
func (m *machine) mendCut(ctx context.Context) error { return m.Mend(ctx) }
