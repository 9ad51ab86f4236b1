package etcd

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/internal/testkit/etcdtest"
	"github.com/lenonet/leno/internal/testkit/programs"
	"github.com/lenonet/leno/internal/testkit/registrytest"
	"github.com/lenonet/leno/internal/testkit/waiting"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/flannel"
)

// Servers for all tests that do not harm their server; each test uses its own prefix.
var (
	common        etcdtest.Shared
	old           = etcdtest.Shared{Options: etcdtest.Options{Program: oldProgram}}
	oldProgram, _ = programs.OldEtcd.Find() // tests that use it call etcdtest.OldProgram first, which fails without it
)

func TestMain(m *testing.M) {
	waiting.Parallel(8)
	code := m.Run()
	for _, shared := range []*etcdtest.Shared{&common, &old, &withAuth, &oldWithAuth} {
		shared.Stop()
	}
	os.Exit(code)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	registrytest.Run(t, func(t *testing.T) registrytest.Store { return newStore(t, common.Get(t)) })
}

// TestConformanceOld runs the suite with Debian's etcd 3.4.
func TestConformanceOld(t *testing.T) {
	t.Parallel()
	etcdtest.OldProgram(t) // or fail
	registrytest.Run(t, func(t *testing.T) registrytest.Store { return newStore(t, old.Get(t)) })
}

// store is one prefix of a server.
type store struct {
	endpoints []string
	admin     *clientv3.Client
	keys      layout
}

func newStore(tb testing.TB, server *etcdtest.Server) *store {
	tb.Helper()
	prefix := "/leno-test/" + strings.ToLower(rand.Text())
	return &store{server.Endpoints(), server.Client(tb), layout{prefix, "default"}}
}

func (s *store) open(tb testing.TB, change ...func(*Config)) *Client {
	tb.Helper()
	c := Config{Endpoints: s.endpoints, Prefix: s.keys.prefix, Network: s.keys.network, Settle: time.Hour}
	for _, f := range change {
		f(&c)
	}
	client := New(c)
	tb.Cleanup(func() {
		if err := client.Close(); err != nil {
			tb.Error(err)
		}
	})
	return client
}

func (s *store) Open(tb testing.TB) registry.Registry { return s.open(tb) }
func (s *store) Token() string                        { return "any" }

func (s *store) Key(parts ...string) string {
	switch {
	case parts[0] == "leases" && parts[2] == "_":
		return s.keys.marker(parts[1])
	case parts[0] == "leases":
		name := strings.Join(parts[2:], "/")
		if p, err := registry.ParseSubnetKey(name); err == nil && p.Addr().Is6() {
			name = "0.0.0.0-0&" + p.Addr().String() + name[strings.LastIndexByte(name, '-'):]
		}
		return s.keys.leases(parts[1]) + name
	case parts[0] == "networks":
		return s.keys.definition(strings.Join(parts[1:], "/"))
	}
	return s.keys.prefix + "/leno/" + strings.Join(parts, "/")
}

func (s *store) LeaseKey(n registry.Network, slot uint64) string {
	return s.keys.lease(n.Name, n.Plan.Subnets(slot))
}

func (s *store) Keys(tb testing.TB, parts ...string) (out []string) {
	tb.Helper()
	resp, err := s.admin.Get(tb.Context(), s.keys.root(), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		tb.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		key := string(kv.Key)
		_, defines := s.keys.definedIn(key)
		switch {
		case len(parts) == 0,
			parts[0] == "networks" && defines,
			parts[0] == "leases" && len(parts) == 1 && !defines && strings.Contains(key, "/subnets/"),
			parts[0] == "leases" && len(parts) == 1 && strings.HasPrefix(key, s.keys.marker("")),
			parts[0] == "leases" && len(parts) == 2 && strings.HasPrefix(key, s.keys.leases(parts[1])),
			parts[0] == "leases" && len(parts) == 2 && key == s.keys.marker(parts[1]),
			parts[0] == "reservations" && strings.HasPrefix(key, s.Key(append(parts, "")...)):
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

func (s *store) EndSession(tb testing.TB, id string) {
	tb.Helper()
	held, ok := parseSession(id)
	if !ok {
		tb.Fatalf("%q is not a session", id)
	}
	if _, err := s.admin.Revoke(tb.Context(), held.alive); err != nil {
		tb.Fatal(err)
	}
}

func (s *store) Put(tb testing.TB, key string, value []byte) {
	tb.Helper()
	var options []clientv3.OpOption
	if resp, err := s.admin.Get(tb.Context(), key); err == nil && len(resp.Kvs) > 0 {
		options = append(options, clientv3.WithIgnoreLease())
	}
	if _, err := s.admin.Put(tb.Context(), key, string(s.embed(key, value)), options...); err != nil {
		tb.Fatal(err)
	}
}

// embed returns the value of a key with leno's record in it. What is no JSON stays as it is.
func (s *store) embed(key string, record []byte) []byte {
	name, defines := s.keys.definedIn(key)
	isLease := strings.Contains(key, "/subnets/")
	if !json.Valid(record) || !defines && !isLease || len(record) > registry.MaxRecordSize {
		return record
	}
	members := map[string]any{}
	if n, err := registry.ParseNetwork(name, record); defines && err == nil {
		value, err := flannel.FormatNetwork(n)
		if err == nil {
			_ = json.Unmarshal(value, &members)
		}
	}
	var l struct {
		PublicIPs []string `json:"public_ips"`
		Backend   struct {
			Type string `json:"type"`
			MAC  string `json:"vtep_mac"`
		} `json:"backend"`
	}
	if err := json.Unmarshal(record, &l); isLease && err == nil && len(l.PublicIPs) > 0 {
		for _, ip := range l.PublicIPs {
			if strings.Contains(ip, ":") {
				members["PublicIPv6"] = ip
			} else {
				members["PublicIP"] = ip
			}
		}
		members["BackendType"] = l.Backend.Type
		if l.Backend.MAC != "" {
			members["BackendData"] = map[string]any{"VNI": 1, "VtepMAC": l.Backend.MAC}
		}
	}
	members["leno"] = json.RawMessage(record)
	value := bytes.Buffer{}
	enc := json.NewEncoder(&value)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(members)
	return value.Bytes()
}

func (s *store) Delete(tb testing.TB, key string) {
	tb.Helper()
	if _, err := s.admin.Delete(tb.Context(), key); err != nil {
		tb.Fatal(err)
	}
}

func (s *store) Get(tb testing.TB, key string) (value []byte, session string, ok bool) {
	tb.Helper()
	ctx := context.WithoutCancel(tb.Context())
	resp, err := s.admin.Get(ctx, key)
	if err != nil {
		tb.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return nil, "", false
	}
	r := newRecord(resp.Kvs[0])
	value = r.value
	var members map[string]json.RawMessage
	if json.Unmarshal(value, &members) == nil && members["leno"] != nil {
		value = members["leno"]
	}
	if network, name, found := strings.Cut(strings.TrimPrefix(key, s.keys.networks()), "/subnets/"); found {
		_ = name
		if strings.HasPrefix(key, s.keys.leases(s.keys.network)) {
			network = s.keys.network
		}
		alive, err := s.admin.Get(ctx, s.keys.session(network, r.lease))
		if err != nil {
			tb.Fatal(err)
		}
		if len(alive.Kvs) > 0 {
			session = held{r, newRecord(alive.Kvs[0])}.id()
		}
	}
	return value, session, true
}

// TestDefinedByFlannel: a network that flannel's operator has defined has no marker before the first host with leno
// claims a subnet in it. That it has no leases is certain all the same.
func TestDefinedByFlannel(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	value := `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`
	if _, err := s.admin.Put(t.Context(), s.keys.definition("default"), value); err != nil {
		t.Fatal(err)
	}
	c := s.open(t)
	n, err := c.Network(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	if set, _, err := c.WatchLeases(t.Context(), n, 0); err != nil || len(set.Leases) > 0 {
		t.Errorf("%+v, %v", set, err)
	}
}
