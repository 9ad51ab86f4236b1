package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// onHost makes one fault on a host and undoes it.
func (r *run) onHost(ctx context.Context, s Step) error {
	m := r.machines[s.Host]
	m.faults.Lock()
	defer m.faults.Unlock()
	node, _ := m.now()
	r.say("round %d: %s on %s for %s", s.Round, s.Kind, node, s.For)
	err := r.fault(ctx, s, m, node)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s on %s: %w", s.Kind, node, err)
	}
	r.say("round %d: %s on %s is over", s.Round, s.Kind, node)
	return nil
}

func (r *run) fault(ctx context.Context, s Step, m *machine, node string) error {
	heard := r.silence(node, s.Kind)
	switch s.Kind {
	case KillAgent, RestartAgent:
		m.setProcess(nil)
		end := m.KillAgent
		if s.Kind == RestartAgent {
			end = func() error { return m.StopAgent(ctx) }
		}
		if err := end(); err != nil {
			return err
		}
		if err := sleep(ctx, s.For); err != nil {
			return err
		}
		if err := r.startAgent(ctx, m); err != nil {
			return err
		}
	case StopShort, StopPastTTL, StopPastHold:
		if err := m.Agent().Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		if err := sleep(ctx, s.For); err != nil {
			return err
		}
		if err := m.Agent().Signal(syscall.SIGCONT); err != nil {
			return err
		}
	case CutHost:
		if err := between(ctx, s.For, m.Cut, m.Mend); err != nil {
			return err
		}
	case LeaveClient:
		if err := between(ctx, s.For, m.Host.Consul.Stop, m.StartConsul); err != nil {
			return err
		}
	case RevokeToken:
		err := between(ctx, s.For,
			func(ctx context.Context) error { return r.setToken(ctx, m, +1) },
			func(ctx context.Context) error { return r.setToken(ctx, m, -1) })
		if err != nil {
			return err
		}
	case ReplaceHost:
		return r.replace(ctx, s, m)
	default:
		return fmt.Errorf("no fault on a host")
	}
	if err := m.awaitStore(ctx); err != nil {
		return err
	}
	heard()
	return nil
}

// between does one thing, and another a while later.
func between(ctx context.Context, d time.Duration, do, undo func(context.Context) error) error {
	if err := do(ctx); err != nil {
		return err
	}
	if err := sleep(ctx, d); err != nil {
		return err
	}
	return undo(ctx)
}

// replace lets a host die for good and another come in its place, with its
// address: that waits until the first one's session has ended.
func (r *run) replace(ctx context.Context, s Step, m *machine) error {
	m.setProcess(nil)
	if err := m.KillAgent(); err != nil {
		return err
	}
	if err := os.RemoveAll(m.DataDir()); err != nil {
		return err
	}
	if err := os.Remove(m.SubnetFile(m.network)); err != nil {
		return err
	}
	m.mu.Lock()
	before := m.node
	m.names++
	m.node = fmt.Sprintf("%s-%d", m.Name, m.names+1)
	node := m.node
	m.mu.Unlock()
	r.record(func(h *History) {
		h.Nodes = append(h.Nodes, Node{Name: node, Network: m.network, Carries: m.carries, Replaces: before})
	})
	heard := r.silence(node, s.Kind)
	if err := r.startAgent(ctx, m); err != nil {
		return err
	}
	if err := r.awaitEnd(ctx, before); err != nil {
		return err
	}
	ended := time.Now()
	// That it has ended is told to nobody: it is seen within a minute.
	err := lab.WaitFor(ctx, "a host in the place of another to be well", func(ctx context.Context) error {
		c := r.ask(ctx, m, node)
		if c.Status == "passing" {
			return nil
		}
		return errors.Join(fmt.Errorf("%s: %s", c.Status, c.Trouble), sleep(ctx, r.Every/2))
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.say("%s is well after %s: %v", node, time.Since(ended).Round(time.Millisecond), err)
	heard() // when it is not, it breaks a rule from now on
	return nil
}

// awaitEnd waits until a node that died for good holds nothing any more: every
// new leader, and a store that is set back, gives its session another full time.
func (r *run) awaitEnd(ctx context.Context, node string) error {
	for {
		r.mu.Lock()
		holds := false
		if i := len(r.h.Reads) - 1; i >= 0 {
			for _, read := range r.h.Reads[max(0, i-1):] { // the last of each network
				holds = holds || slices.ContainsFunc(read.Records, func(x Record) bool { return x.Node == node && x.Session != "" })
			}
		}
		r.mu.Unlock()
		if !holds {
			return nil
		}
		if err := sleep(ctx, r.Every); err != nil {
			return err
		}
	}
}

// onStore makes one fault that concerns everybody and undoes it.
func (r *run) onStore(ctx context.Context, s Step) error {
	r.say("round %d: %s for %s", s.Round, s.Kind, s.For)
	var err error
	switch s.Kind {
	case KillLeader, LoseQuorum, CutServer:
		err = r.onServers(ctx, s)
	case RevokeTokens:
		calm := r.storm(s.Kind)
		err = between(ctx, s.For,
			func(ctx context.Context) error { return r.setTokens(ctx, +1) },
			func(ctx context.Context) error { return r.setTokens(ctx, -1) })
		if err == nil {
			err = r.awaitEveryone(ctx)
		}
		calm()
	case SaveStore:
		err = r.save(ctx)
	case RestoreStore:
		err = r.restore(ctx)
	case EmptyStore:
		err = r.empty(ctx)
	default:
		err = fmt.Errorf("no fault on the store")
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.say("round %d: %s is over", s.Round, s.Kind)
	return err
}

func (r *run) onServers(ctx context.Context, s Step) error {
	leader, err := r.leader(ctx)
	if err != nil {
		return err
	}
	n := len(r.Servers)
	calm := r.storm(s.Kind)
	switch s.Kind {
	case CutServer:
		server := r.Servers[s.Pick%n]
		err = between(ctx, s.For, server.Cut, server.Mend)
	case KillLeader:
		err = r.killed(ctx, s.For, r.Servers[leader])
	case LoseQuorum:
		err = r.killed(ctx, s.For, r.Servers[leader], r.Servers[(leader+1+s.Pick%(n-1))%n])
	}
	if err != nil {
		return err
	}
	if err := r.awaitEveryone(ctx); err != nil {
		return err
	}
	if s.Kind == CutServer {
		// What was under way between Consul's own agents is sent again no sooner:
		// TCP doubles its patience, so up to as long as the cut lasted.
		if err := sleep(ctx, s.For); err != nil {
			return err
		}
	}
	calm()
	return nil
}

func (r *run) killed(ctx context.Context, d time.Duration, servers ...*lab.Consul) error {
	for _, s := range servers {
		if err := s.Kill(); err != nil {
			return err
		}
	}
	if err := sleep(ctx, d); err != nil {
		return err
	}
	return lab.StartAll(ctx, servers)
}

func (r *run) setTokens(ctx context.Context, revoke int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, m := range r.machines {
		g.Go(func() error { return r.setToken(ctx, m, revoke) })
	}
	return g.Wait()
}

func (r *run) empty(ctx context.Context) error {
	leader, err := r.leader(ctx)
	if err != nil {
		return err
	}
	done := r.rewind(EmptyStore)
	_, err = r.Servers[leader].Client().KV().DeleteTree("leno/", (&api.WriteOptions{Token: operatorToken}).WithContext(ctx))
	done()
	return err
}

func (r *run) save(ctx context.Context) error {
	leader, err := r.leader(ctx)
	if err != nil {
		return err
	}
	snapshot, _, err := r.Servers[leader].Client().Snapshot().Save((&api.QueryOptions{Token: operatorToken}).WithContext(ctx))
	if err != nil {
		return err
	}
	defer snapshot.Close()
	r.snapshot, err = io.ReadAll(snapshot)
	return err
}

// restore sets everything back to the last snapshot, but for the tokens: a
// snapshot that was made while one was revoked has not got it.
func (r *run) restore(ctx context.Context) error {
	leader, err := r.leader(ctx)
	if err != nil {
		return err
	}
	done := r.rewind(RestoreStore)
	err = r.Servers[leader].Client().Snapshot().Restore((&api.WriteOptions{Token: operatorToken}).WithContext(ctx), bytes.NewReader(r.snapshot))
	if err != nil {
		return err
	}
	if err := r.setTokens(ctx, 0); err != nil {
		return err
	}
	if err := r.awaitEveryone(ctx); err != nil {
		return err
	}
	done()
	return nil
}
