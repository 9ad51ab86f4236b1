package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// onHost makes one fault on a host and undoes it. A host that cannot be repaired afterwards takes
// no further part in the run: its silence never ends.
func (r *run) onHost(ctx context.Context, s Step) {
	m := r.machines[s.Host]
	m.faults.Lock()
	defer m.faults.Unlock()
	if m.disabled || ctx.Err() != nil {
		return
	}
	node, _ := m.now()
	r.begin(s, "%s on %s for %s", s.Kind, node, s.For)
	var err error
	switch s.Kind {
	case ChangeOptions:
		err = guarded(func() error { return r.changeOptions(ctx, s, m) })
	case ReplaceHost:
		err = guarded(func() error { return r.replace(ctx, m) })
	case LeaveNetwork:
		err = guarded(func() error { return r.leaveNetwork(ctx, s, m) })
	case ChangeAddress:
		err = r.changeAddress(ctx, s, m)
	case ForeignRules, RoutingRule, DisableIPv6, ChangeMTU, AttackPeers:
		err = guarded(func() error { return r.disturbNetwork(ctx, s, m) })
	default:
		err = r.silenced(ctx, s, m, func(ctx context.Context) error { return r.disturb(ctx, s, m) })
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		r.trouble("%s on %s: %v; it is out of the run from now on", s.Kind, node, err)
		m.disabled = true
		return
	}
	r.say("round %d: %s on %s is over", s.Round, s.Kind, node)
}

// silenced records a silence of a host from before a fault until the fault is undone and the store
// responds there. A fault that fails is undone by mending the host.
func (r *run) silenced(ctx context.Context, s Step, m *machine, fault func(context.Context) error) error {
	node, _ := m.now()
	heard := r.silence(node, s.Kind)
	err := guarded(func() error { return fault(ctx) })
	if err != nil && ctx.Err() == nil {
		r.trouble("%s on %s: %v", s.Kind, node, err)
		err = r.mend(ctx, m)
	}
	if err == nil {
		err = r.awaitStore(ctx, m)
	}
	if err == nil {
		heard()
	}
	return err
}

// withAgentsDown stops the agents of up to three hosts without a fault, calls do, and starts them
// again. If the step has a network, the hosts take part in it.
func (r *run) withAgentsDown(ctx context.Context, s Step, do func(context.Context) error) error {
	stop := func(m *machine, ctx context.Context) error {
		m.setProcess(nil)
		r.stopAgent(ctx, m)
		return nil
	}
	start := func(m *machine, ctx context.Context) error { return r.startAgent(ctx, m) }
	return r.silencing(ctx, s, stop, start, do)
}

// silencing calls begin for up to three hosts without a fault, with StartInSwitch for one and with RestartAll for all, then
// do, and then end for the hosts. If the step has a network, the hosts take part in it.
func (r *run) silencing(
	ctx context.Context, s Step, begin, end func(*machine, context.Context) error, do func(context.Context) error,
) error {
	most := 3
	switch s.Kind {
	case StartInSwitch:
		most = 1
	case RestartAll:
		most = len(r.machines)
	}
	var hosts []*machine
	for i := range r.machines {
		m := r.machines[(s.Pick+i)%len(r.machines)]
		takesPart := s.Network == "" || slices.ContainsFunc(m.takesPart(), func(p part) bool { return p.name == s.Network })
		if len(hosts) == most || !takesPart || !m.faults.TryLock() {
			continue
		}
		defer m.faults.Unlock()
		if !m.disabled {
			hosts = append(hosts, m)
		}
	}
	var result error
	call := func(ctx context.Context) error {
		result = do(ctx)
		return nil
	}
	for _, m := range hosts {
		inner := call
		call = func(ctx context.Context) error {
			err := r.silenced(ctx, s, m, func(ctx context.Context) error {
				begun := begin(m, ctx)
				return errors.Join(begun, inner(ctx), end(m, ctx))
			})
			if err != nil && ctx.Err() == nil {
				r.trouble("%s on %s: %v; it is out of the run from now on", s.Kind, m.Name, err)
				m.disabled = true
			}
			return ctx.Err()
		}
	}
	return errors.Join(call(ctx), result)
}

// disturb makes a fault of a kind that keeps an agent from knowing of others, and undoes it.
func (r *run) disturb(ctx context.Context, s Step, m *machine) error {
	switch s.Kind {
	case KillAgent:
		return between(ctx, s.For,
			func(context.Context) error { m.setProcess(nil); return m.KillAgent() },
			func(ctx context.Context) error { return r.startAgent(ctx, m) })
	case SetClock:
		return between(ctx, s.For,
			func(context.Context) error { m.setProcess(nil); return m.KillAgent() },
			func(ctx context.Context) error {
				by := wrongBy(s.Pick)
				r.say("%s: to the agent, the clock is set by %s", m.Name, -by)
				return errors.Join(m.setClock(by), r.startAgent(ctx, m))
			})
	case RestartAgent:
		return between(ctx, s.For,
			func(ctx context.Context) error { m.setProcess(nil); r.stopAgent(ctx, m); return ctx.Err() },
			func(ctx context.Context) error { return r.startAgent(ctx, m) })
	case StopShort, StopPastTTL, StopPastHold:
		return between(ctx, s.For,
			func(context.Context) error { return m.Agent().Signal(syscall.SIGSTOP) },
			func(context.Context) error { return m.Agent().Signal(syscall.SIGCONT) })
	case CutHost:
		return between(ctx, s.For, m.Cut, m.Mend)
	case LeaveClient:
		return between(ctx, s.For, m.Host.Consul.Stop,
			func(ctx context.Context) error { return r.startClient(ctx, m) })
	case RevokeToken:
		return between(ctx, s.For,
			func(ctx context.Context) error { return r.setToken(ctx, m, +1) },
			func(ctx context.Context) error { return r.setToken(ctx, m, -1) })
	}
	return fmt.Errorf("%s is not a fault on a host", s.Kind)
}

// between calls do and, a while later, undo, even if do failed.
func between(ctx context.Context, d time.Duration, do, undo func(context.Context) error) error {
	done := do(ctx)
	if done == nil {
		done = sleep(ctx, d)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(done, undo(ctx))
}

// stopAgent ends the agent with SIGTERM. If it does not end, or fails, that is the agent's fault.
func (r *run) stopAgent(ctx context.Context, m *machine) {
	node, _ := m.now()
	if err := m.StopAgent(ctx); err != nil && ctx.Err() == nil {
		r.record(func(h *History) { h.Endings = append(h.Endings, Ending{node, r.now(), err.Error()}) })
	}
}

// mend undoes everything that faults do to a host.
func (r *run) mend(ctx context.Context, m *machine) error {
	if err := m.Mend(ctx); err != nil {
		return err
	}
	if err := r.startClient(ctx, m); err != nil {
		return err
	}
	if err := r.setToken(ctx, m, 0); err != nil {
		return err
	}
	if m.Agent().IsRunning() {
		return m.Agent().Signal(syscall.SIGCONT)
	}
	return r.startAgent(ctx, m)
}

// changeOptions gives one of the host's networks another subnet_file or another ip_masq, and
// reloads the agent.
func (r *run) changeOptions(ctx context.Context, s Step, m *machine) error {
	node, _ := m.now()
	m.mu.Lock()
	var blocks []*part
	for _, p := range m.parts {
		if p.joins != byWatching {
			blocks = append(blocks, p)
		}
	}
	p := blocks[s.Pick%len(blocks)]
	if s.Pick/len(blocks)%3 == 0 {
		p.masq = !p.masq
	} else {
		p.former, p.file = p.file, m.otherFile(*p)
	}
	m.mu.Unlock()
	if err := r.writeConfig(m); err != nil {
		return err
	}
	change := OptionChange{Span{r.now(), forever}, node, p.name}
	i := 0
	r.record(func(h *History) { i = len(h.Options); h.Options = append(h.Options, change) })
	r.command(ctx, m, "reload")
	r.record(func(h *History) { h.Options[i].To = r.now() })
	r.say("%s: network %s has subnet_file %s, ip_masq %t", node, p.name, p.file, p.masq)
	return ctx.Err()
}

// command runs a leno command on a machine, which must succeed.
func (r *run) command(ctx context.Context, m *machine, args ...string) {
	call, cancel := context.WithTimeout(ctx, operatorPatience)
	defer cancel()
	if out, err := m.Leno(call, args...); err != nil && ctx.Err() == nil {
		node, _ := m.now()
		r.trouble("leno %s on %s: %v %s", strings.Join(args, " "), node, err, out)
	}
}

// leaveNetwork makes a host release its lease of one of its networks, and join it again a while later.
func (r *run) leaveNetwork(ctx context.Context, s Step, m *machine) error {
	var of []part
	for _, p := range m.takesPart() {
		if p.origin != temporary {
			of = append(of, p)
		}
	}
	p := of[s.Pick%len(of)]
	node, _ := m.now()
	back := r.departure(Departure{Node: node, Network: p.name, Why: s.Kind})
	defer back()
	r.say("%s leaves network %s", node, p.name)
	r.command(ctx, m, r.commandOf("lease", "release", p.name)...)
	err := sleep(ctx, s.For)
	r.command(ctx, m, "reload")
	return err
}

// otherFile returns the path that a part's subnet file does not have at the moment: there are two.
func (m *machine) otherFile(p part) string {
	if p.file == m.SubnetFile(p.name) {
		return m.SubnetFile(p.name + "-other")
	}
	return m.SubnetFile(p.name)
}

// replace makes a host die for good and another one come in its place, with its address. The new
// host waits until the sessions of its predecessors have ended.
func (r *run) replace(ctx context.Context, m *machine) error {
	m.setProcess(nil)
	if err := m.KillAgent(); err != nil {
		return err
	}
	if err := os.RemoveAll(m.DataDir()); err != nil {
		return err
	}
	for _, p := range m.takesPart() {
		for _, path := range []string{p.file, p.former} {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	m.mu.Lock()
	before := slices.Clone(m.names)
	node := fmt.Sprintf("%s-%d", m.Name, len(before)+1)
	m.node = node
	m.names = append(m.names, node)
	m.mu.Unlock()
	r.recordNode(m)
	r.silence(before[len(before)-1], ReplaceHost) // this silence never ends
	heard := r.silence(node, ReplaceHost)
	if err := r.startAgent(ctx, m); err != nil {
		return err
	}
	ended, err := r.awaitSuccession(ctx, m, node, before)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.say("%s is well %s after the last session of those before it: %v", node, (r.now() - ended).Round(time.Millisecond), err)
	heard() // from now on, a node that is not well breaks a rule
	return nil
}

// awaitSuccession blocks until a node that replaces others is well, or until a minute has passed
// since none of its predecessors holds a lease and nothing else was in its way. Every new leader,
// and a store that is set back, restarts the full time of the dead hosts' sessions.
func (r *run) awaitSuccession(ctx context.Context, m *machine, node string, before []string) (ended time.Duration, err error) {
	ended, clear := r.now(), r.now()
	for {
		held, stormy := r.heldBy(before), r.stormy()
		if held {
			ended = r.now()
		}
		if held || stormy {
			clear = r.now()
		}
		err = r.wellOn(ctx, m, node)
		if ctx.Err() != nil || err == nil || r.now()-clear > seen {
			return ended, errors.Join(err, ctx.Err())
		}
		if err := sleep(ctx, r.Every/2); err != nil {
			return ended, err
		}
	}
}

// wellOn returns nil when all defined networks of a node are well.
func (r *run) wellOn(ctx context.Context, m *machine, node string) error {
	for _, c := range r.ask(ctx, m, node) {
		if r.isDefined(c.Network) && (c.Status != passing || !c.subnet().IsValid()) {
			return fmt.Errorf("network %s: %s: %s", c.Network, c.Status, c.Trouble)
		}
	}
	return nil
}

// heldBy reports whether the store had a live lease of one of the nodes at the last read.
func (r *run) heldBy(nodes []string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := len(allNetworks()) + 1
	for _, read := range r.h.Reads[max(0, len(r.h.Reads)-of):] {
		if slices.ContainsFunc(read.Records, func(x Record) bool { return slices.Contains(nodes, x.Node) && x.Session != "" }) {
			return true
		}
	}
	return false
}

// stormy reports whether there is a fault on the store, or was until a moment ago.
func (r *run) stormy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	recently := func(s Span) bool { return s.To == forever || s.To > r.now()-r.Rules.Settle }
	return slices.ContainsFunc(r.h.Storms, func(s Storm) bool { return recently(s.Span) }) ||
		slices.ContainsFunc(r.h.Rewinds, func(s Rewind) bool { return recently(s.Span) })
}
