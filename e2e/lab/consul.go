package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/hashicorp/consul/api"
)

// A Consul is one Consul agent: a server, or a client on a host. Its data survives Stop, Kill and
// Start. Start, Stop and Kill must be called by one goroutine at a time.
type Consul struct {
	Node

	api    netip.AddrPort // of its HTTP API, inside the namespace
	client *api.Client
	config map[string]any
}

const consulPort = 8500

// serverList returns the addresses of all servers, for agents to join.
func (l *Lab) serverList() (out []string) {
	for i := range l.opts.Servers {
		out = append(out, serverAddrs(i)[0].String())
	}
	return out
}

func newConsulServer(l *Lab, ns *Namespace, name string, i int) (*Consul, error) {
	addr := serverAddrs(i)[0]
	c := &Consul{
		Node: Node{Name: name, Addr: addr, Namespace: ns, program: StoreConsul, lab: l},
		api:  netip.AddrPortFrom(addr, consulPort),
		config: map[string]any{
			"node_name":        name,
			"server":           true,
			"bootstrap_expect": l.opts.Servers,
			"bind_addr":        addr.String(),
			"client_addr":      addr.String() + " 127.0.0.1",
			// The shortest election: a leader about 2 s after the start.
			"performance": map[string]any{"raft_multiplier": 1},
			// A server that is cut off comes back later. If autopilot removed it from the cluster
			// in between, it would hang the requests of client agents that use it.
			"autopilot": map[string]any{"cleanup_dead_servers": false},
		},
	}
	if l.opts.Servers > 1 {
		c.config["retry_join"], c.config["retry_interval"] = l.serverList(), "1s"
	}
	return c, c.newClient()
}

func newConsulClient(h *Host) (*Consul, error) {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	c := &Consul{
		Node: Node{Name: h.Name, Addr: h.Addrs[0], Namespace: h.Namespace, program: StoreConsul, lab: h.lab},
		api:  netip.AddrPortFrom(loopback, consulPort),
		config: map[string]any{
			"node_name":      h.Name,
			"server":         false,
			"bind_addr":      h.Addrs[0].String(),
			"client_addr":    loopback.String(),
			"retry_join":     h.lab.serverList(),
			"retry_interval": "1s",
		},
	}
	return c, c.newClient()
}

func (c *Consul) newClient() (err error) {
	c.client, err = api.NewClient(&api.Config{Address: c.Address(), HttpClient: c.Namespace.HTTP()})
	return err
}

// Address returns the address of the HTTP API for programs inside the lab, "192.0.2.1:8500".
func (c *Consul) Address() string { return c.api.String() }

// Client returns a client for use in this process. A token goes into the options of each request.
func (c *Consul) Client() *api.Client { return c.client }

// CLI runs the consul program ("kv", "get", ...) and returns what it prints.
func (c *Consul) CLI(ctx context.Context, args ...string) (string, error) {
	command := []string{"env", "CONSUL_HTTP_ADDR=" + c.Address(), c.lab.opts.Consul}
	return c.Namespace.Exec(ctx, append(command, args...)...)
}

// Configure sets an option of the agent's configuration, or removes it if value is nil. It takes effect at the next Start.
func (c *Consul) Configure(option string, value any) {
	delete(c.config, option)
	if value != nil {
		c.config[option] = value
	}
}

// Start starts the agent, again or for the first time, and blocks until it answers a consistent
// read, which requires a leader.
func (c *Consul) Start(ctx context.Context) error { return StartAll(ctx, []*Consul{c}) }

func (c *Consul) launch() error {
	if err := c.checkEnded(); err != nil {
		return err
	}
	dir := filepath.Join(c.lab.Dir, "consul", c.Name)
	files, err := c.write(dir)
	if err != nil {
		return err
	}
	command := []string{c.lab.opts.Consul, "agent"}
	for _, f := range files {
		command = append(command, "-config-file="+f)
	}
	c.process, err = c.Namespace.Start(command...)
	return err
}

func (c *Consul) await(ctx context.Context) error {
	status, kv := c.client.Status(), c.client.KV()
	err := c.process.WaitFor(ctx, "a leader of Consul", func(ctx context.Context) error {
		// This endpoint reports a missing leader at once; a read would block for seconds.
		leader, err := status.LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
		if err == nil && leader == "" {
			err = errors.New("no leader yet")
		}
		if err != nil {
			return err
		}
		_, _, err = kv.Get("leno/", (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
		var answer api.StatusError
		if errors.As(err, &answer) && answer.Code == http.StatusForbidden {
			return nil // it has a leader and knows that the token may not read
		}
		return err
	})
	return c.started(err)
}

// write puts the configuration files into dir and returns their paths.
func (c *Consul) write(dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	c.config["data_dir"] = filepath.Join(dir, "data")
	c.config["log_level"] = "INFO"
	c.config["disable_update_check"] = true
	c.config["ports"] = map[string]any{"dns": -1, "grpc": -1, "grpc_tls": -1, "serf_wan": -1}
	text, err := json.MarshalIndent(c.config, "", "  ")
	if err != nil {
		return nil, err
	}
	files := []string{string(text)}
	more := c.lab.opts.ConsulClientConfig
	if c.config["server"] == true {
		more = c.lab.opts.ConsulConfig
	}
	if more != "" {
		files = append(files, more)
	}
	var paths []string
	for i, text := range files {
		path := filepath.Join(dir, fmt.Sprintf("%d.json", i))
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}
