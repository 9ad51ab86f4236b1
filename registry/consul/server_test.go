package consul

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/jwt"
	"github.com/lenonet/leno/internal/testkit/owned"
	"github.com/lenonet/leno/internal/testkit/ports"
	"github.com/lenonet/leno/internal/testkit/process"
	"github.com/lenonet/leno/internal/testkit/programs"
	"github.com/lenonet/leno/internal/testkit/waiting"
)

// rootToken has all rights on every test server.
const rootToken = "7f6a3c9e-0000-4000-8000-000000000001"

// testPatience limits every wait; only a failure takes that long.
const testPatience = 3 * time.Minute

// server is a real Consul on its own loopback ports, with ACLs that deny by default.
type server struct {
	addr    string // of its HTTP API
	serf    string // its address for other agents of Consul
	wan     string // its address for servers of other datacenters
	dir     string
	args    []string
	process *process.Process // nil before start
	admin   *api.Client
	logFile string
}

// TestMain stops the server that all tests share.
func TestMain(m *testing.M) {
	waiting.Parallel(8)
	code := m.Run()
	common.stop()
	os.Exit(code)
}

// common is the server shared by all tests that do not harm their server; each test uses its own prefix.
var common sharedServer

type sharedServer struct {
	once sync.Once
	s    *server
	dir  *owned.Dir
	err  error
}

func (c *sharedServer) get(tb testing.TB) *server {
	tb.Helper()
	c.once.Do(func() {
		name := filepath.Join(os.TempDir(), "leno-consul-")
		if c.err = owned.Sweep(name+"*", os.RemoveAll); c.err != nil { // of earlier runs that were killed
			return
		}
		if c.dir, c.err = owned.Make(name + filepath.Base(testPrefix())); c.err != nil {
			return
		}
		c.s, c.err = startServer(c.dir.Path, "")
	})
	if c.err != nil {
		tb.Fatal(c.err)
	}
	return c.s
}

func (c *sharedServer) stop() {
	if c.s != nil {
		c.s.kill()
	}
	if c.dir != nil {
		_ = c.dir.Remove() // the next run does
	}
}

// newServer starts a server for one test.
func newServer(t *testing.T, extra string) *server {
	t.Helper()
	s, err := startServer(t.TempDir(), extra)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	return s
}

// newServerWith starts a server for one test, with options that may be in blocks that it has already.
func newServerWith(t *testing.T, options string) *server {
	t.Helper()
	s, err := configureServer(t.TempDir(), "", true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	s.args = append(s.args, "-hcl", options)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	return s
}

func startServer(dir, extra string) (*server, error) {
	s, err := configureServer(dir, extra, true)
	if err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		s.kill()
		return nil, err
	}
	return s, nil
}

func configureServer(dir, extra string, isServer bool) (*server, error) {
	ports, err := ports.Free(4)
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`
node_name = %q
bind_addr = "127.0.0.1"
client_addr = "127.0.0.1"
ports { http = %d  server = %d  serf_lan = %d  serf_wan = %d  dns = -1  grpc = -1  grpc_tls = -1  https = -1 }
performance { raft_multiplier = 1  leave_drain_time = "1ms" }
limits { http_max_conns_per_client = 10000 }
log_level = "warn"
acl { enabled = true  default_policy = "deny"  tokens { initial_management = %q  agent = %q } }
%s`, fmt.Sprintf("node-%d", ports[0]), ports[0], ports[1], ports[2], ports[3], rootToken, rootToken, extra)
	if !isServer {
		config = strings.Replace(config, "initial_management", "agent_recovery", 1)
	}
	path := filepath.Join(dir, fmt.Sprintf("consul-%d.hcl", ports[0]))
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return nil, err
	}
	s := &server{
		addr: fmt.Sprintf("127.0.0.1:%d", ports[0]), serf: fmt.Sprintf("127.0.0.1:%d", ports[2]), wan: fmt.Sprintf("127.0.0.1:%d", ports[3]), dir: dir,
		logFile: path + ".log", args: []string{"agent", "-config-file", path},
	}
	if isServer {
		s.args = append(s.args, "-dev")
	} else {
		s.args = append(s.args, "-data-dir", filepath.Join(dir, "data"))
	}
	conf := api.DefaultConfig()
	conf.Address, conf.Scheme, conf.Token, conf.TokenFile = s.addr, "http", rootToken, ""
	s.admin, err = api.NewClient(conf)
	return s, err
}

// start runs the process and waits until it serves reads and writes.
func (s *server) start() error {
	binary, err := programs.Consul.Find()
	if err != nil {
		return err
	}
	if s.process, err = process.Start(exec.Command(binary, s.args...), s.logFile); err != nil {
		return err
	}
	return s.process.WaitFor(context.Background(), "Consul", func(ctx context.Context) error {
		options := (&api.WriteOptions{}).WithContext(ctx)
		if _, err := s.admin.KV().Put(&api.KVPair{Key: "ready"}, options); err != nil {
			return err
		}
		// Sessions need the node in the catalogue, which appears a moment later.
		id, _, err := s.admin.Session().CreateNoChecks(&api.SessionEntry{}, options)
		if err != nil {
			return err
		}
		_, err = s.admin.Session().Destroy(id, options)
		return err
	})
}

// kill ends the process with SIGKILL; its store is lost.
func (s *server) kill() {
	if s.process != nil {
		s.process.Kill()
	}
}

// testPrefix returns a KV prefix that no other test uses.
func testPrefix() string {
	b := make([]byte, 6)
	_, _ = rand.Read(b)
	return "test/" + hex.EncodeToString(b)
}

// client returns a client of the server as another host would have it.
func (s *server) client(tb testing.TB, prefix string, change ...func(*Config)) *Client {
	tb.Helper()
	conf := Config{KVPrefix: prefix, Audit: 100 * time.Millisecond}
	conf.Address, conf.Token, conf.Coalesce = s.addr, rootToken, 10*time.Millisecond
	for _, f := range change {
		f(&conf)
	}
	c, err := New(conf)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// newToken creates a token with the given rules.
func (s *server) newToken(tb testing.TB, rules string) (secret, policyID string) {
	tb.Helper()
	name := strings.ReplaceAll(testPrefix(), "/", "-")
	policy, _, err := s.admin.ACL().PolicyCreate(&api.ACLPolicy{Name: name, Rules: rules}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	token, _, err := s.admin.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLTokenPolicyLink{{ID: policy.ID}}}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return token.SecretID, policy.ID
}

// addAuthMethod creates an auth method for the issuer's JWTs, and a policy with rules for those whose claim role is
// "leno". A maxTTL of 0 means tokens that do not expire.
func (s *server) addAuthMethod(tb testing.TB, i jwt.Issuer, name, rules string, maxTTL time.Duration) {
	tb.Helper()
	acl := s.admin.ACL()
	method := &api.ACLAuthMethod{Name: name, Type: "jwt", MaxTokenTTL: maxTTL, Config: i.AuthMethod(tb)}
	if _, _, err := acl.AuthMethodCreate(method, nil); err != nil {
		tb.Fatal(err)
	}
	policy, _, err := acl.PolicyCreate(&api.ACLPolicy{Name: name, Rules: rules}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	role, _, err := acl.RoleCreate(&api.ACLRole{Name: name, Policies: []*api.ACLRolePolicyLink{{ID: policy.ID}}}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	rule := &api.ACLBindingRule{
		AuthMethod: name,
		BindType:   api.BindingRuleBindTypeRole,
		BindName:   role.Name,
		Selector:   `value.role == "leno"`,
	}
	if _, _, err := acl.BindingRuleCreate(rule, nil); err != nil {
		tb.Fatal(err)
	}
}

// setRules changes the rules of a policy of newToken.
func (s *server) setRules(tb testing.TB, policyID, rules string) {
	tb.Helper()
	policy, _, err := s.admin.ACL().PolicyRead(policyID, nil)
	if err != nil {
		tb.Fatal(err)
	}
	policy.Rules = rules
	if _, _, err := s.admin.ACL().PolicyUpdate(policy, nil); err != nil {
		tb.Fatal(err)
	}
}

// store is a registrytest.Store on a prefix of a server, with other operations that tests do without the registry.
type store struct {
	*server
	prefix string
}

// newStore returns a part of the common server. The sessions that a test leaves there end with it: every claim
// lists all sessions, and decoding those of hundreds of tests would take a third of the tests' time.
func newStore(tb testing.TB) *store {
	tb.Helper()
	s := &store{server: common.get(tb), prefix: testPrefix()}
	tb.Cleanup(func() {
		sessions, _, err := s.admin.Session().List(nil)
		if err != nil {
			tb.Error(err)
		}
		for _, session := range sessions {
			if strings.HasPrefix(session.Name, s.prefix+"/") {
				s.EndSession(tb, session.ID)
			}
		}
	})
	return s
}

func (s *store) open(tb testing.TB, change ...func(*Config)) *Client {
	tb.Helper()
	return s.client(tb, s.prefix, change...)
}

func (s *store) Token() string { return rootToken }

func (s *store) EndSession(tb testing.TB, id string) {
	tb.Helper()
	if _, err := s.admin.Session().Destroy(id, nil); err != nil {
		tb.Fatal(err)
	}
}

// Put writes keys that some releases of Consul refuse on /v1/kv in a transaction, which is too small for the largest
// values.
func (s *store) Put(tb testing.TB, key string, value []byte) {
	tb.Helper()
	if !plainKey.MatchString(key) {
		s.transact(tb, &api.KVTxnOp{Verb: api.KVSet, Key: key, Value: value})
		return
	}
	if _, err := s.admin.KV().Put(&api.KVPair{Key: key, Value: value}, nil); err != nil {
		tb.Fatal(err)
	}
}

func (s *store) Delete(tb testing.TB, key string) {
	tb.Helper()
	s.transact(tb, &api.KVTxnOp{Verb: api.KVDelete, Key: key})
}

func (s *store) transact(tb testing.TB, op *api.KVTxnOp) {
	tb.Helper()
	if ok, response, _, err := s.admin.KV().Txn(api.KVTxnOps{op}, nil); err != nil || !ok {
		tb.Fatalf("transaction: %v, %+v", err, response)
	}
}

func (s *store) Get(tb testing.TB, key string) (value []byte, session string, ok bool) {
	tb.Helper()
	pair, _, err := s.admin.KV().Get(key, nil)
	if err != nil {
		tb.Fatal(err)
	}
	if pair == nil {
		return nil, "", false
	}
	return pair.Value, pair.Session, true
}

func (s *store) Keys(tb testing.TB, prefix string) []string {
	tb.Helper()
	keys, _, err := s.admin.KV().Keys(prefix, "", nil)
	if err != nil {
		tb.Fatal(err)
	}
	slices.Sort(keys)
	return keys
}

// empty deletes every key below the prefix at once.
func (s *store) empty(tb testing.TB) {
	tb.Helper()
	if _, err := s.admin.KV().DeleteTree(s.prefix+"/", nil); err != nil {
		tb.Fatal(err)
	}
}

// sessions returns the ids of all sessions for a network of the prefix.
func (s *store) sessions(tb testing.TB, network string) []string {
	tb.Helper()
	entries, _, err := s.admin.Session().List(nil)
	if err != nil {
		tb.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name, s.prefix+"/"+network+"/") {
			out = append(out, e.ID)
		}
	}
	return out
}

func testContext(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	tb.Cleanup(cancel)
	return ctx
}

func wantIs(tb testing.TB, err error, wants ...error) {
	tb.Helper()
	for _, want := range wants {
		if !errors.Is(err, want) {
			tb.Fatalf("got error %v, want one that is %q", err, want)
		}
	}
}

var eventually = waiting.Until
