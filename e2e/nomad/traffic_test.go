package nomad

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// every is the time between two pings in one direction.
const every = 5 * time.Millisecond

// between is the minimum number of pings that cross before and after each operation.
const between = 40

// lossless runs do while the two allocations ping each other and fails the test if a ping was lost.
func (c *cluster) lossless(what string, do func()) {
	c.t.Helper()
	var streams []*lab.Echoes
	for i, m := range c.machines {
		from, to := c.namespace(m, c.web[i]), c.web[1-i].addr()
		e, err := from.StartEchoes(c.ctx, to, every)
		c.must(err)
		streams = append(streams, e)
	}
	flow := func() {
		for _, e := range streams {
			c.must(e.WaitAnswers(c.ctx, between))
		}
	}
	flow()
	do()
	flow()
	var sum lab.EchoResult
	for _, e := range streams {
		r, err := e.Stop()
		c.must(err)
		sum.Sent, sum.Answered, sum.Gap = sum.Sent+r.Sent, sum.Answered+r.Answered, max(sum.Gap, r.Gap)
	}
	c.t.Logf("%s: %d pings, %d lost, longest gap %s", what, sum.Sent, sum.Lost(), sum.Gap)
	if sum.Lost() != 0 {
		c.t.Errorf("%s: %d of %d pings lost", what, sum.Lost(), sum.Sent)
	}
}

// self returns the agent's description of itself on a machine.
func (c *cluster) self(m *machine) (self api.Self) {
	c.t.Helper()
	c.eventually("the agent on "+m.Name+" to answer", func(ctx context.Context) (err error) {
		self, err = agentSelf(ctx, m)
		return err
	})
	return self
}

func agentSelf(ctx context.Context, m *machine) (self api.Self, err error) {
	client, err := api.New(api.Config{HTTPClient: m.HTTP()})
	if err != nil {
		return self, err
	}
	self, err = client.Self(ctx)
	return self, err
}

// another blocks until a machine's agent is another process than before and ready.
func (c *cluster) another(m *machine, before api.Self) {
	c.t.Helper()
	c.eventually("another agent on "+m.Name, func(ctx context.Context) error {
		now, err := agentSelf(ctx, m)
		if err == nil && (now.PID == before.PID || now.NodeID != before.NodeID) {
			err = fmt.Errorf("it is %d as %s, and was %d as %s", now.PID, now.NodeID, before.PID, before.NodeID)
		}
		if err != nil {
			return err
		}
		return ready(ctx, m)
	})
}

// restarts restarts the agents and the Nomad clients in every way.
func (c *cluster) restarts() {
	c.t.Helper()
	a, b := c.machines[0], c.machines[1]
	c.settled() // Nomad refuses to restart a job while it is deployed
	c.lossless("nomad job restart", func() {
		before := []api.Self{c.self(a), c.self(b)}
		c.does("nomad job restart -yes leno")
		c.another(a, before[0])
		c.another(b, before[1])
	})
	c.lossless("kill -9 of an agent", func() {
		before := c.self(a)
		_, err := a.run(c.ctx, "kill", "-9", fmt.Sprint(before.PID))
		c.must(err)
		c.another(a, before)
	})
	c.lossless("restart of Nomad's clients", func() {
		before, again := []api.Self{c.self(a), c.self(b)}, c.web
		for _, m := range c.machines {
			// After a SIGKILL, Nomad would not know the addresses of young allocations any more.
			c.must(m.stopNomad(c.ctx, syscall.SIGTERM))
			m.nomad = nil
		}
		c.startClients()
		c.running("leno", 0, a, b)
		for i, m := range c.machines {
			if now := c.self(m); now.PID != before[i].PID {
				c.t.Errorf("%s: the agent was %d and is %d", m.Name, before[i].PID, now.PID)
			}
			if c.web = c.running("web", 0, a, b); c.web[i].ID != again[i].ID {
				c.t.Errorf("%s: allocation %s became %s", m.Name, again[i].ID, c.web[i].ID)
			}
		}
	})
}

// keeps drains a host whose agent keeps its lease.
func (c *cluster) keeps() {
	c.t.Helper()
	a, b := c.machines[0], c.machines[1]
	subnet, err := b.subnet()
	c.must(err)

	// The agent is not affected by a drain that ignores system jobs.
	before := c.self(b)
	c.drain(b, "-ignore-system")
	if now := c.self(b); now.PID != before.PID {
		c.t.Errorf("the agent was %d and is %d", before.PID, now.PID)
	}
	c.undrain(b)

	c.drain(b)
	c.gone(b)
	if session, ok := c.lease(subnet.String()); !ok || session == "" {
		c.t.Errorf("a drain with release_on_stop = false: lease of %s: %t, session %q", subnet, ok, session)
	}
	routes, err := a.Exec(c.ctx, "ip", "route", "show", "proto", "108")
	c.must(err)
	c.must(contains(routes, subnet.String()))
	c.undrain(b)
	if now, err := b.subnet(); err != nil || now != subnet {
		c.t.Errorf("the subnet was %s and is %s, %v", subnet, now, err)
	}
	c.carries()
}

// releases drains a host whose agent releases its subnet.
func (c *cluster) releases() {
	c.t.Helper()
	b := c.machines[1]
	before := c.self(b)
	c.does("nomad job run -var=release_on_stop=true examples/nomad/leno.nomad.hcl", "-detach", "-var=stagger=1s")
	c.another(b, before)
	subnet, err := b.subnet()
	c.must(err)
	c.drain(b)
	c.gone(b)
	if session, ok := c.lease(subnet.String()); ok {
		c.t.Errorf("a drain with release_on_stop = true: the lease of %s is there, session %q", subnet, session)
	}
}

// drain moves the jobs off a machine. Without a deadline, Nomad would first wait until newly
// started allocations are healthy.
func (c *cluster) drain(m *machine, flags ...string) {
	c.t.Helper()
	c.nomad(append(append([]string{"node", "drain", "-enable", "-yes", "-deadline=1s"}, flags...), c.nodes[m.Name])...)
}

// undrain makes the machine eligible again and waits until it runs both jobs.
func (c *cluster) undrain(m *machine) {
	c.t.Helper()
	c.nomad("node", "drain", "-disable", "-yes", c.nodes[m.Name])
	c.agents(0, m)
	c.web = c.running("web", 0, c.machines...)
}

// gone blocks until no agent answers on a machine.
func (c *cluster) gone(m *machine) {
	c.t.Helper()
	c.eventually("the agent on "+m.Name+" to be gone", func(ctx context.Context) error {
		if self, err := agentSelf(ctx, m); err == nil {
			return fmt.Errorf("%d answers", self.PID)
		}
		return nil
	})
}

// lease returns the session that holds a subnet's lease in Consul, and reports whether there is a
// lease.
func (c *cluster) lease(subnet string) (session string, ok bool) {
	c.t.Helper()
	pair, _, err := c.Consul.Client().KV().Get("leno/leases/default/"+strings.ReplaceAll(subnet, "/", "-"), nil)
	c.must(err)
	if pair == nil {
		return "", false
	}
	return pair.Session, true
}
