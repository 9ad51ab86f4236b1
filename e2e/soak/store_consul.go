package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/lab"
)

// A consulStore is a run's Consul.
type consulStore struct{ *run }

// operatorToken has all rights.
const operatorToken = "3f1e2a60-0000-4000-8000-000000000001"

// aclConfig caches rights for a second only, so that deleting a token takes effect at once.
const aclConfig = `"acl": {"enabled": true, "default_policy": "deny", "token_ttl": "1s", "policy_ttl": "1s",
	"tokens": {%s"agent": "` + operatorToken + `"}}`

// bindConfig makes a client agent use the address that its host has when it starts.
const bindConfig = `"bind_addr": "{{ GetAllInterfaces | include \"name\" \"^` + underlayDevice + `$\" | include \"type\" \"ipv4\" | join \"address\" \" \" }}"`

var (
	serverConfig = "{" + fmt.Sprintf(aclConfig, `"initial_management": "`+operatorToken+`", `) + "}"
	clientConfig = "{" + fmt.Sprintf(aclConfig, "") + ", " + bindConfig + "}"
)

// rules are the rights of a host's agent. They differ from those in examples/consul/policy.hcl only
// in ways that an agent cannot notice.
const rules = `
key_prefix "leno/" { policy = "write" }
session %[1]q { policy = "write" }
session_prefix "" { policy = "read" }
service "leno" { policy = "write" }
agent %[1]q { policy = "read" }`

func writing(ctx context.Context) *api.WriteOptions {
	return (&api.WriteOptions{Token: operatorToken}).WithContext(ctx)
}

func reading(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true, Token: operatorToken}).WithContext(ctx)
}

func (c *consulStore) setUp(ctx context.Context, m *machine) error {
	acl := c.Servers[0].Client().ACL()
	policy := &api.ACLPolicy{Name: "leno-" + m.Name, Rules: fmt.Sprintf(rules, m.Name)}
	policy, _, err := acl.PolicyCreate(policy, writing(ctx))
	if err != nil {
		return fmt.Errorf("create the policy of %s: %w", m.Name, err)
	}
	token := &api.ACLToken{Description: m.Name, Policies: []*api.ACLLink{{ID: policy.ID}}}
	if m.token, _, err = acl.TokenCreate(token, writing(ctx)); err != nil {
		return fmt.Errorf("create the token of %s: %w", m.Name, err)
	}
	return os.WriteFile(m.tokenFile(), []byte(m.token.SecretID+"\n"), 0o600)
}

func (c *consulStore) config(m *machine) string {
	return fmt.Sprintf("consul {\n  address    = %q\n  token_file = %q\n}\n", m.Host.Consul.Address(), m.tokenFile())
}

func (c *consulStore) operator() []string { return []string{"-token=" + operatorToken} }

// leader returns the index of the leading server. The others may not know yet that they are
// connected again.
func (c *consulStore) leader(ctx context.Context) (int, error) {
	for _, s := range c.Servers {
		addr, err := s.Client().Status().LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
		if err != nil || addr == "" {
			continue
		}
		for i, s := range c.Servers {
			if addr == s.Addr.String()+":8300" {
				return i, nil
			}
		}
	}
	return 0, errors.New("no server knows a leader")
}

func (c *consulStore) leading(ctx context.Context) (*api.Client, error) {
	i, err := c.leader(ctx)
	if err != nil {
		return nil, err
	}
	return c.Servers[i].Client(), nil
}

func (c *consulStore) answers(ctx context.Context, server int) error {
	return asks(ctx, c.Servers[server], operatorToken)
}

func (c *consulStore) answersOn(ctx context.Context, m *machine) error {
	if err := asks(ctx, m.Host.Consul, m.token.SecretID); err != nil {
		return err
	}
	// A new leader may remove the node of a host that was cut off under the previous leader, with
	// its sessions, and creates no session until the node has joined again.
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	node, _, err := m.Host.Consul.Client().Catalog().Node(m.Name, reading(ctx))
	if err == nil && node == nil {
		err = errors.New("not in Consul's catalogue")
	}
	return err
}

func asks(ctx context.Context, c *lab.Consul, token string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	options := &api.QueryOptions{RequireConsistent: true, Token: token}
	_, _, err := c.Client().KV().Get("leno/networks/_", options.WithContext(ctx))
	return err
}

// upToDate reads stale data from each server. A server that was away for long must rejoin first and
// returns stale data until then.
func (c *consulStore) upToDate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var now uint64
	for i, s := range append([]*lab.Consul{c.Servers[0]}, c.Servers...) {
		options := &api.QueryOptions{Token: operatorToken, RequireConsistent: i == 0, AllowStale: i > 0}
		_, meta, err := s.Client().KV().Keys("", "", options.WithContext(ctx))
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", s.Name, err)
		case i == 0:
			now = meta.LastIndex
		case meta.LastIndex < now:
			return fmt.Errorf("%s is at index %d, the store is at %d", s.Name, meta.LastIndex, now)
		}
	}
	return nil
}

func (c *consulStore) diagnose(ctx context.Context, server int) string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	leader, err := c.Servers[server].Client().Status().LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
	return fmt.Sprintf("its leader is %q (%v)", leader, err)
}

func pairOf(p *api.KVPair) pair {
	return pair{key: p.Key, value: p.Value, record: p.Value, session: p.Session, version: p.ModifyIndex}
}

func (c *consulStore) list(ctx context.Context, server int) ([]pair, error) {
	all, _, err := c.Servers[server].Client().KV().List("leno/", reading(ctx))
	var out []pair
	for _, p := range all {
		out = append(out, pairOf(p))
	}
	return out, err
}

func (c *consulStore) read(ctx context.Context, key string) (*pair, error) {
	client, err := c.leading(ctx)
	if err != nil {
		return nil, err
	}
	kv, _, err := client.KV().Get(key, reading(ctx))
	if err != nil || kv == nil {
		return nil, err
	}
	p := pairOf(kv)
	return &p, nil
}

func (c *consulStore) write(ctx context.Context, key string, value []byte) error {
	client, err := c.leading(ctx)
	if err == nil {
		_, err = client.KV().Put(&api.KVPair{Key: key, Value: value}, writing(ctx))
	}
	return err
}

// ownSession is a new session of the writer's.
const ownSession = "own"

func (c *consulStore) forge(ctx context.Context, key string, value []byte, session string) error {
	if session == "" {
		return c.write(ctx, key, value)
	}
	client, err := c.leading(ctx)
	if err == nil && session == ownSession {
		entry := api.SessionEntry{TTL: "60s", Behavior: api.SessionBehaviorDelete} // the record is removed earlier
		session, _, err = client.Session().CreateNoChecks(&entry, writing(ctx))
	}
	if err != nil {
		return err
	}
	// It changes nothing if another session holds the record: a host's, or that of an attempt before.
	_, _, err = client.KV().Acquire(&api.KVPair{Key: key, Value: value, Session: session}, writing(ctx))
	return err
}

func (c *consulStore) replace(ctx context.Context, p pair, value []byte) (done bool, err error) {
	client, err := c.leading(ctx)
	if err != nil {
		return false, err
	}
	kv := &api.KVPair{Key: p.key, Value: value, ModifyIndex: p.version}
	if value == nil {
		done, _, err = client.KV().DeleteCAS(kv, writing(ctx))
	} else {
		done, _, err = client.KV().CAS(kv, writing(ctx))
	}
	return done, err
}

func (c *consulStore) delete(ctx context.Context, key string) error {
	client, err := c.leading(ctx)
	if err == nil {
		_, err = client.KV().Delete(key, writing(ctx))
	}
	return err
}

func (c *consulStore) deleteAll(ctx context.Context) error {
	client, err := c.leading(ctx)
	if err == nil {
		_, err = client.KV().DeleteTree("leno/", writing(ctx))
	}
	return err
}

func (c *consulStore) save(ctx context.Context) ([]byte, error) {
	client, err := c.leading(ctx)
	if err != nil {
		return nil, err
	}
	reader, _, err := client.Snapshot().Save((&api.QueryOptions{Token: operatorToken}).WithContext(ctx))
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return io.ReadAll(reader)
}

func (c *consulStore) restore(ctx context.Context, snapshot []byte) error {
	client, err := c.leading(ctx)
	if err == nil {
		err = client.Snapshot().Restore(writing(ctx), bytes.NewReader(snapshot))
	}
	return err
}

func (c *consulStore) compact(context.Context) error {
	return errors.New("the history of Consul's records cannot be discarded")
}

func (m *machine) putToken(ctx context.Context, acl *api.ACL, wanted bool) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, _, err := acl.TokenRead(m.token.AccessorID, reading(ctx))
	var answer api.StatusError
	there := err == nil
	missing := errors.As(err, &answer) && (answer.Code == http.StatusForbidden || answer.Code == http.StatusNotFound)
	if err != nil && !missing {
		return err
	}
	switch {
	case wanted && !there:
		_, _, err = acl.TokenCreate(&api.ACLToken{
			AccessorID:  m.token.AccessorID,
			SecretID:    m.token.SecretID,
			Description: m.token.Description,
			Policies:    m.token.Policies,
		}, writing(ctx))
		return err
	case !wanted && there:
		_, err = acl.TokenDelete(m.token.AccessorID, writing(ctx))
		return err
	}
	return nil
}
