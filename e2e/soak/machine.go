package soak

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// patience is how long the suite waits, on a machine that may be busy, for things that do not
// depend on leno before it repairs them by force.
const patience = 3 * time.Minute

// A machine is one host with its agent.
type machine struct {
	*lab.Host
	index   int
	carries bool
	token   *api.ACLToken // nil if the store is not Consul
	names   []string      // of the nodes that it has been

	faults  sync.Mutex // held during a fault
	setting sync.Mutex // held while its token is set

	mu       sync.Mutex
	parts    []*part
	node     string
	process  *lab.Process // of the agent; nil while it is meant to be down
	client   *lab.Process // the last process of its Consul agent
	revoked  int          // number of faults that keep its token deleted
	disabled bool         // it could not be repaired after a fault
	waits    waits
}

func (m *machine) now() (node string, process *lab.Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node, m.process
}

func (m *machine) setProcess(p *lab.Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.process = p
}

// takesPart returns copies of the machine's current parts.
func (m *machine) takesPart() (out []part) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.parts {
		out = append(out, *p)
	}
	return out
}

// privateRun runs leno with the host's directory as /run/leno, where the agent writes the subnet
// files of networks without a block.
const privateRun = `#!/bin/sh
[ "$1" = agent ] || exec %[1]q "$@"
exec unshare --mount sh -euc 'mount -t tmpfs tmpfs /run; mkdir /run/leno; mount --bind "${3%%/*}" /run/leno; exec %[1]q "$@"' sh "$@"
`

// setUp starts everything and waits until all agents are well.
func (r *run) setUp(ctx context.Context) error {
	program := filepath.Join(r.Dir, "leno")
	if err := os.WriteFile(program, fmt.Appendf(nil, privateRun, r.Leno), 0o755); err != nil {
		return err
	}
	for i, h := range r.Hosts {
		m := &machine{Host: h, index: i, carries: r.carries(i), parts: r.partsOf(i, h.Dir), node: h.Name, names: []string{h.Name}}
		m.Program = program
		if err := r.store.setUp(ctx, m); err != nil {
			return err
		}
		r.machines = append(r.machines, m)
		r.recordNode(m)
	}
	g, starting := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, m := range r.machines {
		g.Go(func() error { return r.startClient(starting, m) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := r.awaitEveryone(ctx); err != nil {
		return err
	}
	var err error
	if r.oldest, err = r.save(ctx); err != nil {
		return err
	}
	for _, m := range r.machines {
		if err := r.startAgent(ctx, m); err != nil {
			return err
		}
	}
	if err := r.setUpNetworks(ctx); err != nil {
		return err
	}
	for _, m := range r.machines {
		err := await(ctx, patience, "all networks on "+m.Name, func(ctx context.Context) error {
			for _, c := range r.ask(ctx, m, m.node) {
				if c.Status != passing || !c.subnet().IsValid() {
					return fmt.Errorf("network %s: %s %s", c.Network, c.Status, c.Trouble)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	r.pings = &pings{run: r, containers: map[place]*lab.Container{}}
	return r.pings.start(ctx)
}

// recordNode adds the machine's current node to the history.
func (r *run) recordNode(m *machine) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := slices.Clone(m.names[:len(m.names)-1])
	r.record(func(h *History) {
		for _, p := range m.parts {
			h.Nodes = append(h.Nodes, Node{Name: m.node, Network: p.name, Carries: m.carries, Replaces: before})
		}
	})
}

func (m *machine) tokenFile() string { return filepath.Join(m.Dir, "token") }

// writeConfig writes the agent's configuration.
func (r *run) writeConfig(m *machine) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	config := fmt.Sprintf(`node_name = %q
data_dir  = %q
log_level = "DEBUG"

%s
lease {
  ttl  = %q
  hold = %q
}

%s`, m.node, m.DataDir(), r.store.config(m), r.Rules.TTL, r.Rules.Hold, r.blocks(m.parts))
	return os.WriteFile(m.ConfigFile(), []byte(config), 0o644)
}

// startAgent writes the configuration, starts the agent and waits for its first response of any
// kind. It is no error if the response does not come in time: the rules judge that.
func (r *run) startAgent(ctx context.Context, m *machine) error {
	if err := r.writeConfig(m); err != nil {
		return err
	}
	if err := m.RestartAgent(); err != nil {
		return err
	}
	p := m.Agent()
	err := p.WaitFor(ctx, "an answer of the agent on "+m.Name, func(ctx context.Context) error {
		_, _, err := m.Get(ctx, "/healthz")
		return err
	})
	m.setProcess(p)
	if err != nil && ctx.Err() == nil {
		r.trouble("%v", err)
	}
	return ctx.Err()
}

// startClient starts a machine's Consul agent unless it is running, and waits until it knows a
// leader. With another store, it does nothing.
func (r *run) startClient(ctx context.Context, m *machine) error {
	if !r.hasConsul() {
		return nil
	}
	const tries = 3
	var err error
	for range tries {
		if c := m.Host.Consul; c == nil || c.Process() == nil || !c.Process().IsRunning() {
			err = m.StartConsul(ctx)
		} else {
			err = await(ctx, patience, "a leader that the Consul agent on "+m.Name+" knows", func(ctx context.Context) error {
				return asks(ctx, c, operatorToken)
			})
		}
		if err == nil {
			m.mu.Lock()
			m.client = m.Host.Consul.Process()
			m.mu.Unlock()
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		r.trouble("%v", err)
	}
	return err
}

// awaitStore blocks until the store answers a consistent read where the machine's agent asks, with
// the agent's token: from then on, times count.
func (r *run) awaitStore(ctx context.Context, m *machine) error {
	return await(ctx, patience, "the store to answer on "+m.Name, func(ctx context.Context) error {
		return r.store.answersOn(ctx, m)
	})
}

// await is like lab.WaitFor with a limit of its own.
func await(ctx context.Context, limit time.Duration, what string, done func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := lab.WaitFor(limited, what, done)
		if err == nil || limited.Err() != nil {
			return cmp.Or(ctx.Err(), err)
		}
	}
}
