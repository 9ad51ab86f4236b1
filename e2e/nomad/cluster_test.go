package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// programPaths are the paths of the real programs.
type programPaths struct{ leno, nomad, cni string }

// A cluster is a Nomad server next to the lab's Consul server, with a Nomad client and a Consul
// agent on each host.
type cluster struct {
	*lab.Lab
	t        *testing.T
	ctx      context.Context
	machines []*machine
	server   *lab.Process
	programs programPaths
	nodes    map[string]string // ids of Nomad's nodes by name
	web      []alloc           // of the example job, one per machine
}

// serverURL is where Nomad's API listens, inside the lab.
const serverURL = "http://192.0.2.1:4646"

const serverConfig = `
name                 = "server"
data_dir             = %q
bind_addr            = "192.0.2.1"
log_level            = "INFO"
disable_update_check = true

advertise {
  http = "192.0.2.1"
  rpc  = "192.0.2.1"
  serf = "192.0.2.1"
}

server {
  enabled          = true
  bootstrap_expect = 1
  raft_multiplier  = 1
}

consul {
  address = "192.0.2.1:8500"
}
`

const clientConfig = `
data_dir             = "/var/lib/nomad"
bind_addr            = "0.0.0.0"
log_level            = "DEBUG"
disable_update_check = true

advertise {
  http = %[1]q
  rpc  = %[1]q
  serf = %[1]q
}

client {
  enabled           = true
  servers           = ["192.0.2.1:4647"]
  network_interface = "eth0"
  cgroup_parent     = %[2]q

  # These wait for an answer that never comes.
  options = {
    "fingerprint.denylist" = "env_aws,env_azure,env_gce,env_digitalocean"
  }
}
`

// newCluster lays out the hosts and starts Consul on them and the Nomad server. The caller starts
// the Nomad clients.
func newCluster(t *testing.T, hosts int, change ...func(*lab.Options)) *cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	t.Cleanup(cancel)
	c := &cluster{t: t, ctx: ctx, programs: programPaths{leno: binary}}
	var err error
	c.programs.nomad, err = lab.FindNomad()
	c.must(err)
	c.programs.cni, err = lab.FindCNI()
	c.must(err)
	options := lab.Options{Name: "n", Hosts: hosts, Leno: binary}
	for _, f := range change {
		f(&options)
	}
	c.Lab, err = lab.New(ctx, options)
	c.must(err)
	t.Cleanup(func() {
		if t.Failed() {
			c.tell()
		}
		if err := errors.Join(c.Close(), c.removeSlices()); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	path := filepath.Join(c.Dir, "server.hcl")
	c.must(os.WriteFile(path, fmt.Appendf(nil, serverConfig, filepath.Join(c.Dir, "server")), 0o644))
	c.server, err = c.Consul.Namespace.Start(c.programs.nomad, "agent", "-config="+path)
	c.must(err)
	var starts errgroup.Group
	for _, h := range c.Hosts {
		m, err := newMachine(ctx, h, &c.programs)
		c.must(err)
		c.machines = append(c.machines, m)
		c.must(m.write(configuration+"/nomad.hcl", fmt.Sprintf(clientConfig, h.Addrs[0], c.slice(h))))
		starts.Go(func() error { return h.StartConsul(ctx) })
	}
	c.must(starts.Wait())
	c.must(c.server.WaitFor(ctx, "a leader of Nomad", func(ctx context.Context) error {
		var leader string
		err := c.get(ctx, "/v1/status/leader", &leader)
		if err == nil && leader == "" {
			err = fmt.Errorf("none")
		}
		return err
	}))
	return c
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// tell prints the programs' output, for a failed test.
func (c *cluster) tell() {
	for _, m := range c.machines {
		if m.nomad != nil {
			lines := strings.Split(strings.TrimSpace(m.nomad.Output()), "\n")
			c.t.Logf("Nomad's client on %s:\n%s", m.Name, strings.Join(lines[max(0, len(lines)-60):], "\n"))
		}
		logs, _ := filepath.Glob(m.path("/var/lib/nomad/alloc/*/alloc/logs/*.stderr.0"))
		for _, log := range logs {
			text, _ := os.ReadFile(log)
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			c.t.Logf("%s: %s:\n%s", m.Name, log, strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	}
}

func (c *cluster) eventually(what string, done func(context.Context) error) {
	c.t.Helper()
	c.must(lab.WaitFor(c.ctx, what, done))
}

// get reads an endpoint of Nomad's API.
func (c *cluster) get(ctx context.Context, path string, v any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, serverURL+path, nil)
	if err != nil {
		return err
	}
	response, err := c.Consul.Namespace.HTTP().Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, response.Status, body)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}

// cli runs the nomad program against the server and returns its output.
func (c *cluster) cli(args ...string) (string, error) {
	command := []string{"env", "NOMAD_ADDR=" + serverURL, c.programs.nomad}
	return c.Consul.Namespace.Exec(c.ctx, append(command, args...)...)
}

// nomad is like cli but fails the test on an error.
func (c *cluster) nomad(args ...string) string {
	c.t.Helper()
	out, err := c.cli(args...)
	if err != nil {
		c.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// An alloc holds the fields of an allocation that the tests need.
type alloc struct {
	ID, NodeName, TaskGroup, ClientStatus, DesiredStatus string

	JobVersion    int
	CreateTime    int64 // Unix time in nanoseconds
	NetworkStatus *struct{ Address, AddressIPv6, InterfaceName string }
	TaskStates    map[string]struct {
		State    string
		Restarts int
		Events   []struct{ Type, DisplayMessage string }
	}
}

// allocs returns the allocations of a job in any order.
func (c *cluster) allocs(ctx context.Context, job string) (out []alloc, err error) {
	return out, c.get(ctx, "/v1/job/"+job+"/allocations?task_states=true", &out)
}

// running blocks until a job runs once on each of the machines, in at least the given version, and
// returns the allocations in the order of the machines.
func (c *cluster) running(job string, version int, on ...*machine) []alloc {
	c.t.Helper()
	var out []alloc
	c.eventually(fmt.Sprintf("job %s to run on %d hosts", job, len(on)), func(ctx context.Context) error {
		all, err := c.allocs(ctx, job)
		if err != nil {
			return err
		}
		found := map[string]alloc{}
		var told []string
		for _, a := range all {
			told = append(told, fmt.Sprintf("%.8s on %s %s, version %d", a.ID, a.NodeName, a.ClientStatus, a.JobVersion))
			if a.ClientStatus == "running" && a.DesiredStatus == "run" && a.JobVersion >= version {
				found[a.NodeName] = a
			}
		}
		out = out[:0]
		for _, m := range on {
			a, ok := found[m.Name]
			if !ok {
				return fmt.Errorf("not on %s: %s", m.Name, strings.Join(told, "; "))
			}
			if err := c.get(ctx, "/v1/allocation/"+a.ID, &a); err != nil { // the list does not contain the network
				return err
			}
			out = append(out, a)
		}
		return nil
	})
	return out
}

// startClients starts Nomad on every machine that does not run it and waits until the server knows
// all of them.
func (c *cluster) startClients() {
	c.t.Helper()
	for _, m := range c.machines {
		if m.nomad == nil {
			c.must(m.startNomad())
		}
	}
	for _, m := range c.machines {
		c.must(m.nomad.WaitFor(c.ctx, "Nomad's client on "+m.Name, func(context.Context) error {
			if !strings.Contains(m.nomad.Output(), "node registration complete") {
				return errors.New("it is not registered")
			}
			return nil
		}))
	}
	c.eventually("Nomad's clients to be ready", func(ctx context.Context) error {
		var nodes []struct{ ID, Name, Status string }
		if err := c.get(ctx, "/v1/nodes", &nodes); err != nil {
			return err
		}
		c.nodes = map[string]string{}
		for _, n := range nodes {
			if n.Status == "ready" {
				c.nodes[n.Name] = n.ID
			}
		}
		if len(c.nodes) < len(c.machines) {
			return fmt.Errorf("%d are, of %+v", len(c.nodes), nodes)
		}
		return nil
	})
}

// file returns the path of an example.
func (c *cluster) file(name string) string {
	c.t.Helper()
	path, err := filepath.Abs("../../examples/" + name)
	c.must(err)
	return path
}

// example returns the text of an example.
func (c *cluster) example(name string) string {
	c.t.Helper()
	text, err := os.ReadFile(c.file(name))
	c.must(err)
	return string(text)
}

// slice returns the name of the host's control group, the same in every hierarchy.
func (c *cluster) slice(h *lab.Host) string { return "leno-" + c.ID + "-" + h.Name + ".slice" }

// removeSlices removes the control groups that Nomad leaves behind.
func (c *cluster) removeSlices() error {
	return lab.WaitFor(context.Background(), "the control groups to be empty", func(context.Context) error {
		var errs []error
		for _, h := range c.Hosts {
			errs = append(errs, c.removeSlice(h))
		}
		return errors.Join(errs...)
	})
}

func (c *cluster) removeSlice(h *lab.Host) error {
	var errs []error
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		tops, err := filepath.Glob(pattern + c.slice(h))
		errs = append(errs, err)
		for _, top := range tops {
			errs = append(errs, removeGroups(top))
		}
	}
	return errors.Join(errs...)
}

// removeGroups removes a control group after its children. Its files disappear with it.
func removeGroups(top string) error {
	var groups []string
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			groups = append(groups, path)
		}
		return err
	})
	for _, group := range slices.Backward(groups) {
		err = errors.Join(err, os.Remove(group))
	}
	return err
}
