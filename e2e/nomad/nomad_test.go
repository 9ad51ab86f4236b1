// Package nomad runs the jobs of examples/nomad on a real Nomad cluster with a real Consul, with
// packets between allocations.
package nomad

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
)

// binary is the path of the leno under test, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(lab.RunWithLeno(&binary, m.Run))
}

// TestNomad takes a cluster from nothing to allocations that reach each other, through the
// incomplete set-ups on the way, and then restarts, upgrades and drains the agents.
func TestNomad(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	c := newCluster(t, 2)
	c.setUp()
	c.carries()
	c.restarts()
	c.upgrade()
	c.goesBack()
	c.keeps()
	c.confined()
	c.boots()
	c.releases()
}

// setUp runs both jobs, starting with the one that needs addresses, on clients that lack something.
// Each client reports what is missing, and the jobs run once it is there.
func (c *cluster) setUp() {
	c.t.Helper()
	a, b := c.machines[0], c.machines[1]
	for _, m := range c.machines {
		c.must(m.installPlugins(c.programs.cni))
		c.prepare(m)
		c.must(os.Remove(m.path("/opt/cni/config/leno.conflist")))
	}
	c.must(os.Remove(a.path("/opt/cni/bin/leno-cni")))
	c.startClients()

	// Without a CNI configuration, the job waits for a client that has one.
	c.does("nomad job run examples/nomad/web.nomad.hcl", "-detach")
	c.eventually("Nomad to say that the network is missing", func(context.Context) error {
		return contains(c.nomad("job", "status", "web"), c.says(`Constraint "missing network": 2 nodes excluded by filter`))
	})
	c.prepare(b)
	c.must(a.write("/opt/cni/config/leno.conflist", c.example("nomad/leno.conflist")))
	for _, m := range c.machines {
		c.must(m.signalNomad(syscall.SIGHUP))
	}
	for _, m := range c.machines {
		c.eventually(m.Name+" to have the network", func(context.Context) error {
			return contains(c.nomad("node", "status", "-json", c.nodes[m.Name]), `"Mode": "cni/leno"`)
		})
	}
	c.nomad("job", "eval", "-detach", "web") // Nomad does not evaluate it again by itself

	// One client lacks the plugin, the other one the agent.
	c.eventually("Nomad to say that the plugin is missing", func(ctx context.Context) error {
		return c.said(ctx, a, "web", c.says(`failed to find plugin "leno-cni" in path [/opt/cni/bin]`))
	})
	c.prepare(a)
	c.eventually("the plugin to say that there is no agent", func(context.Context) error {
		return contains(b.nomad.Output(), c.says("network default has no subnet file /run/leno/default.env: no agent answers at 127.0.0.1:5366"))
	})
	c.does("nomad job run examples/nomad/leno.nomad.hcl", "-detach", "-var=stagger=1s")
	c.agents(0, c.machines...)
	c.web = c.running("web", 0, c.machines...)
}

// said returns an error unless the words are in Nomad's events for a job's allocations on a
// machine.
func (c *cluster) said(ctx context.Context, m *machine, job, words string) error {
	all, err := c.allocs(ctx, job)
	if err != nil {
		return err
	}
	var told []string
	for _, a := range all {
		if a.NodeName != m.Name {
			continue
		}
		for _, task := range a.TaskStates {
			for _, e := range task.Events {
				told = append(told, e.Type+": "+e.DisplayMessage)
			}
		}
	}
	return contains(strings.Join(told, "\n"), words)
}

func contains(text, words string) error {
	if !strings.Contains(text, words) {
		return fmt.Errorf("%q is not in: %s", words, text)
	}
	return nil
}

// agents blocks until the given version of the system job runs on the machines and the agents are
// ready.
func (c *cluster) agents(version int, on ...*machine) {
	c.t.Helper()
	c.running("leno", version, on...)
	for _, m := range on {
		c.eventually("the agent on "+m.Name+" to be ready", func(ctx context.Context) error { return ready(ctx, m) })
	}
}

func ready(ctx context.Context, m *machine) error {
	status, body, err := m.Get(ctx, "/readyz")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("/readyz answers %d: %s", status, body)
	}
	return err
}

// carries checks that the allocations have addresses from their hosts' subnets, reach each other at
// them, and are in Consul with them.
func (c *cluster) carries() {
	c.t.Helper()
	for i, m := range c.machines {
		subnet, err := m.subnet()
		c.must(err)
		addr := c.web[i].addr()
		if !subnet.Contains(addr) {
			c.t.Errorf("%s: allocation at %s, the host's subnet is %s", m.Name, addr, subnet)
		}
		ns := c.namespace(m, c.web[i])
		own, err := ns.Exec(c.ctx, "ip", "-4", "-brief", "addr", "show", "dev", "eth0")
		c.must(err)
		c.must(contains(own, addr.String()+"/24"))
		_, err = ns.Exec(c.ctx, "ping", "-c", "1", "-w", "5", "127.0.0.1")
		c.must(err)
		other := c.web[1-i].addr()
		c.eventually("the page of "+c.machines[1-i].Name, func(ctx context.Context) error {
			page, err := read(ctx, ns.HTTP(), fmt.Sprintf("http://%s:8080/", other))
			if err != nil {
				return err // a task that is running may not listen yet
			}
			return contains(page, "on "+c.machines[1-i].Name)
		})
	}
	c.eventually("no address to be taken but those", func(context.Context) error {
		for i, m := range c.machines {
			got, err := m.taken()
			if err != nil {
				return err
			}
			if own := c.web[i].addr(); len(got) != 1 || got[0] != own {
				return fmt.Errorf("%s: %v are taken, the allocation has %s", m.Name, got, own)
			}
		}
		return nil
	})
	c.eventually("the addresses in Consul", func(context.Context) error {
		services, _, err := c.Consul.Client().Health().Service("web", "", true, nil)
		if err != nil {
			return err
		}
		want := map[string]string{}
		for i, m := range c.machines {
			want[m.Name] = fmt.Sprintf("%s:8080", c.web[i].addr())
		}
		for _, s := range services {
			if got := fmt.Sprintf("%s:%d", s.Service.Address, s.Service.Port); got != want[s.Node.Node] {
				return fmt.Errorf("%s in Consul, the allocation on %s is at %s", got, s.Node.Node, want[s.Node.Node])
			}
		}
		if len(services) != len(want) {
			return fmt.Errorf("%d that pass of %v", len(services), want)
		}
		return nil
	})
	// The agent registers itself in Consul once, and the job once in Nomad.
	c.eventually("the agents in Consul", func(context.Context) error {
		agents, _, err := c.Consul.Client().Catalog().Service("leno", "", nil)
		if err == nil && len(agents) != len(c.machines) {
			err = fmt.Errorf("%d services leno on %d hosts", len(agents), len(c.machines))
		}
		return err
	})
	c.eventually("the check of the system job", func(context.Context) error {
		for _, a := range c.running("leno", 0, c.machines...) {
			if err := contains(c.nomad("alloc", "checks", "-t", "{{range .}}{{.Status}} {{.StatusCode}}{{end}}", a.ID), "success 200"); err != nil {
				return err
			}
		}
		return nil
	})
}

func read(ctx context.Context, client *http.Client, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func (a alloc) addr() netip.Addr { return netip.MustParseAddr(a.NetworkStatus.Address) }

// namespace opens the network namespace that Nomad created for an allocation.
func (c *cluster) namespace(m *machine, a alloc) *lab.Namespace {
	c.t.Helper()
	first, err := child(m.init.Pid())
	c.must(err)
	ns, err := c.OpenNamespace(m.Name+"-"+a.ID, filepath.Join(fmt.Sprintf("/proc/%d/root/run/netns", first), a.ID))
	c.must(err)
	return ns
}
