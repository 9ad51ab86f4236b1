package soak

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// Networks of the run.
const (
	carried = "carried" // over VXLAN, with containers that ping each other
	leased  = "leased"  // leases only, hardly more slots than hosts
)

// operatorToken may do everything.
const operatorToken = "3f1e2a60-0000-4000-8000-000000000001"

// Rights are cached for a second only, so that a token is gone when it is gone.
const aclConfig = `{"acl": {"enabled": true, "default_policy": "deny", "token_ttl": "1s", "policy_ttl": "1s", "tokens": {%s"agent": "` + operatorToken + `"}}}`

var (
	serverConfig = fmt.Sprintf(aclConfig, `"initial_management": "`+operatorToken+`", `)
	clientConfig = fmt.Sprintf(aclConfig, "")
)

// rules are an agent's rights, those of any host.
const rules = `
key_prefix "leno/" { policy = "write" }
session_prefix "" { policy = "write" }
service "leno" { policy = "write" }
agent_prefix "" { policy = "read" }`

// machine is one host with its agent.
type machine struct {
	*lab.Host
	index   int
	network string
	carries bool
	body    string // of the network block
	token   *api.ACLToken
	names   int // how many nodes it has been

	faults sync.Mutex // held during a fault

	mu      sync.Mutex
	node    string
	process *lab.Process // of the agent; nil while it is meant to be down
	revoked int          // by how many faults its token is deleted
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

// body is the network block of a host that carries packets or not. The pool of
// the others is small, so that who comes for a slot meets those that were given
// up, and large enough for the dead that a restore brings back.
func (o Options) body(carries bool) string {
	if carries {
		return "  ipv4 {\n    prefix = \"10.5.0.0/16\"\n  }\n  ipv6 {\n    prefix = \"fd00:5::/48\"\n  }\n  backend \"vxlan\" {}\n  forward = true"
	}
	return fmt.Sprintf("  ipv4 {\n    prefix = \"10.6.0.0/16\"\n    min    = \"10.6.1.0\"\n    max    = \"10.6.%d.0\"\n  }\n  backend \"alloc\" {}",
		o.Agents-o.Carriers+8)
}

// setUp starts everything and waits until all is well.
func (r *run) setUp(ctx context.Context) error {
	acl := r.Servers[0].Client().ACL()
	write := (&api.WriteOptions{Token: operatorToken}).WithContext(ctx)
	policy, _, err := acl.PolicyCreate(&api.ACLPolicy{Name: "leno", Rules: rules}, write)
	if err != nil {
		return fmt.Errorf("create the agents' policy: %w", err)
	}
	for i, h := range r.Hosts {
		m := &machine{Host: h, index: i, network: leased, carries: r.carries(i), node: h.Name}
		if m.carries {
			m.network = carried
		}
		m.body = r.body(m.carries)
		if m.token, _, err = acl.TokenCreate(&api.ACLToken{Description: h.Name, Policies: []*api.ACLLink{{ID: policy.ID}}}, write); err != nil {
			return fmt.Errorf("create the token of %s: %w", h.Name, err)
		}
		if err := os.WriteFile(m.tokenFile(), []byte(m.token.SecretID+"\n"), 0o600); err != nil {
			return err
		}
		r.machines = append(r.machines, m)
		r.record(func(hist *History) {
			hist.Nodes = append(hist.Nodes, Node{Name: m.node, Network: m.network, Carries: m.carries})
		})
	}
	g, starting := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, m := range r.machines {
		g.Go(func() error { return m.StartConsul(starting) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, m := range r.machines {
		if err := r.startAgent(ctx, m); err != nil {
			return err
		}
	}
	for _, m := range r.machines {
		if err := m.WaitReady(ctx); err != nil {
			return err
		}
	}
	r.pings = &pings{run: r, containers: map[*machine]*lab.Container{}}
	return r.pings.start(ctx)
}

func (m *machine) tokenFile() string { return filepath.Join(m.Dir, "token") }

// startAgent writes the configuration, starts the agent and waits for its first
// answer of any kind.
func (r *run) startAgent(ctx context.Context, m *machine) error {
	node, _ := m.now()
	config := fmt.Sprintf(`node_name = %q
data_dir  = %q
log_level = "DEBUG"

consul {
  address    = %q
  token_file = %q
}

lease {
  ttl  = %q
  hold = %q
}

%s`, node, m.DataDir(), m.Host.Consul.Address(), m.tokenFile(), r.Rules.TTL, r.Rules.Hold, m.Network(m.network, m.body))
	if err := m.StartAgent(config); err != nil {
		return err
	}
	p := m.Agent()
	err := p.WaitFor(ctx, "an answer of the agent on "+m.Name, func(ctx context.Context) error {
		_, _, err := m.Get(ctx, "/healthz")
		return err
	})
	m.setProcess(p)
	return err
}

// awaitStore waits until the store answers a consistent read where the machine's
// agent asks for it, and under its token: from then on time counts.
func (m *machine) awaitStore(ctx context.Context) error {
	err := lab.WaitFor(ctx, "the store to answer on "+m.Name, m.asksStore)
	if err != nil {
		return fmt.Errorf("%w; this is not about leno", err)
	}
	return nil
}

func (m *machine) asksStore(ctx context.Context) error {
	if err := asks(ctx, m.Host.Consul, m.token.SecretID); err != nil {
		return err
	}
	// A new leader may reap the node of a host that was cut off under the last
	// one, with its sessions, and makes none until the node has joined again.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	node, _, err := m.Host.Consul.Client().Catalog().Node(m.Name, (&api.QueryOptions{RequireConsistent: true, Token: operatorToken}).WithContext(ctx))
	if err == nil && node == nil {
		err = errors.New("not in Consul's catalogue")
	}
	return err
}

func asks(ctx context.Context, c *lab.Consul, token string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _, err := c.Client().KV().Get("leno/networks/"+leased, (&api.QueryOptions{RequireConsistent: true, Token: token}).WithContext(ctx))
	return err
}

// awaitEveryone is awaitStore for all machines that no fault is on, and for the
// servers: a client agent may turn to another one at any time.
func (r *run) awaitEveryone(ctx context.Context) error {
	return lab.WaitFor(ctx, "the store to answer everywhere (this is not about leno)", func(ctx context.Context) error {
		errs := make([]error, len(r.machines))
		var asking sync.WaitGroup
		for _, s := range r.Servers {
			if err := asks(ctx, s, operatorToken); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
		}
		for i, m := range r.machines {
			node, _ := m.now()
			if r.silentNow(node) {
				continue
			}
			asking.Go(func() {
				if err := m.asksStore(ctx); err != nil && !r.silentNow(node) {
					errs[i] = fmt.Errorf("%s: %w", m.Name, err)
				}
			})
		}
		asking.Wait()
		return errors.Join(errs...)
	})
}

// leader is the index of the server that leads. The others may not know yet that
// they are back.
func (r *run) leader(ctx context.Context) (int, error) {
	for _, s := range r.Servers {
		addr, err := s.Client().Status().LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
		if err != nil || addr == "" {
			continue
		}
		for i, s := range r.Servers {
			if addr == s.Addr.String()+":8300" {
				return i, nil
			}
		}
	}
	return 0, errors.New("no server knows a leader")
}

// setToken deletes or gives back a machine's token, the same one. Faults may
// overlap: it is there when none is left.
func (r *run) setToken(ctx context.Context, m *machine, revoke int) error {
	m.mu.Lock()
	m.revoked += revoke
	wanted := m.revoked == 0
	m.mu.Unlock()
	tries := 0
	return lab.WaitFor(ctx, "the token of "+m.Name+" to be set", func(ctx context.Context) error {
		tries++ // a server may be dead or cut off meanwhile
		return m.putToken(ctx, r.Servers[tries%len(r.Servers)].Client().ACL(), wanted)
	})
}

func (m *machine) putToken(ctx context.Context, acl *api.ACL, wanted bool) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	write := (&api.WriteOptions{Token: operatorToken}).WithContext(ctx)
	_, _, err := acl.TokenRead(m.token.AccessorID, (&api.QueryOptions{Token: operatorToken, RequireConsistent: true}).WithContext(ctx))
	var answer api.StatusError
	there := err == nil
	if err != nil && (!errors.As(err, &answer) || answer.Code != http.StatusForbidden && answer.Code != http.StatusNotFound) {
		return err
	}
	switch {
	case wanted && !there:
		_, _, err = acl.TokenCreate(&api.ACLToken{
			AccessorID: m.token.AccessorID, SecretID: m.token.SecretID, Description: m.token.Description, Policies: m.token.Policies,
		}, write)
		return err
	case !wanted && there:
		_, err = acl.TokenDelete(m.token.AccessorID, write)
		return err
	}
	return nil
}
