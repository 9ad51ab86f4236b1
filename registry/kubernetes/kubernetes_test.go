package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/kubetest"
	"github.com/lenonet/leno/internal/testkit/waiting"
	"github.com/lenonet/leno/registry"
)

const vxlanConf = `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`

// patience limits every wait; only a failure takes that long.
const patience = 3 * time.Minute

// cluster is the API server that all tests use, one after the other.
type cluster struct {
	*kubetest.Server
	config string // path of the administrator's kubeconfig
}

// TestContract runs all tests that need an API server with one, because it takes seconds to start.
func TestContract(t *testing.T) {
	c := &cluster{Server: kubetest.Start(t)}
	c.config = c.Kubeconfig(t, kubetest.AdminToken)
	for _, tt := range []struct {
		name string
		test func(*testing.T, *cluster)
	}{
		{"lease of a host", testLease},
		{"two hosts", testTwoHosts},
		{"hosts with flannel", testForeign},
		{"broken annotations", testBroken},
		{"unsuitable nodes", testUnsuitable},
		{"public address of the operator", testOverwrite},
		{"duplicate hosts", testDuplicate},
		{"one subnet of two nodes", testSharedSubnet},
		{"one node of two hosts", testSharedNode},
		{"node of another host before", testTakeOver},
		{"lost lease", testLost},
		{"release", testRelease},
		{"records of a host", testHostRecords},
		{"host under another name", testRenamedHost},
		{"changes by kubelet", testHeartbeat},
		{"network in a file", testFile},
		{"network in a ConfigMap", testConfigMap},
		{"both families", testDualStack},
		{"unsupported operations", testUnsupported},
		{"rights", testRights},
		{"invented tokens", testInventedTokens},
		{"rotated credentials", testRotation},
		{"outage", testOutage},
		{"compaction", testCompaction},
		{"restored storage", testRestored},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, c) })
	}
}

// add creates a Node that is deleted at the end of the test.
func (c *cluster) add(t *testing.T, name string, annotations map[string]string, podCIDRs ...string) {
	t.Helper()
	c.AddNode(t, name, annotations, podCIDRs...)
	t.Cleanup(func() {
		if strings.Contains(string(c.Do(t, "GET", nodesPath, nil)), `"name":"`+name+`"`) {
			c.DeleteNode(t, name)
		}
	})
}

// open returns a client of a host. conf is its net-conf.json.
func (c *cluster) open(t *testing.T, node, conf string, change ...func(*Config)) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "net-conf.json")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	config := Config{Kubeconfig: c.config, NodeName: node, NetConf: path, Settle: time.Hour}
	for _, f := range change {
		f(&config)
	}
	client := New(config)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func network(t *testing.T, c *Client) registry.Network {
	t.Helper()
	n, err := c.Network(t.Context(), DefaultNetwork)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// claim returns a claim of a vxlan host; 192.0.2.<last> is its address.
func claim(t *testing.T, node string, last int) registry.Claim {
	t.Helper()
	options := fmt.Appendf(nil, `{"vni":1,"port":8472,"vtep_mac":"0a:58:00:00:00:%02x"}`, last)
	b, err := registry.NewBackend("vxlan", options)
	if err != nil {
		t.Fatal(err)
	}
	return registry.Claim{
		Node:      node,
		NodeID:    "id-" + node,
		PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(last)})},
		MTU:       1450,
		Backend:   b,
		TTL:       time.Minute,
		Hold:      time.Hour,
	}
}

// flannelNode returns the annotations of a host that runs flannel.
func flannelNode(last int) map[string]string {
	return map[string]string{
		DefaultAnnotationPrefix + "/kube-subnet-manager": "true",
		DefaultAnnotationPrefix + "/backend-type":        "vxlan",
		DefaultAnnotationPrefix + "/backend-data":        fmt.Sprintf(`{"VNI":1,"VtepMAC":"0a:58:00:00:01:%02x"}`, last),
		DefaultAnnotationPrefix + "/public-ip":           fmt.Sprintf("192.0.2.%d", last),
	}
}

func acquire(t *testing.T, c *Client, claim registry.Claim) registry.Lease {
	t.Helper()
	l, err := c.Acquire(t.Context(), network(t, c), claim)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// await waits until the leases are as wanted, and returns them with their index.
func await(t *testing.T, c *Client, want ...string) (registry.LeaseSet, uint64) {
	t.Helper()
	return awaitSet(t, c, func(s registry.LeaseSet) bool { return slices.Equal(texts(s), want) }, strings.Join(want, "; "))
}

func awaitSet(t *testing.T, c *Client, isWanted func(registry.LeaseSet) bool, want string) (registry.LeaseSet, uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n := network(t, c)
	var set registry.LeaseSet
	for after := uint64(0); ; {
		now, index, err := c.WatchLeases(ctx, n, after)
		if err != nil {
			t.Fatalf("%v; have %q, bad %v; want %s", err, texts(set), set.Bad, want)
		}
		if set = now; isWanted(set) {
			return set, index
		}
		after = index
	}
}

// texts returns leases as "host-a 10.244.1.0/24", with " missing" for a missing one.
func texts(s registry.LeaseSet) (out []string) {
	for _, l := range s.Leases {
		text := fmt.Sprintf("%s %s", l.Node, l.Subnet())
		if l.Missing {
			text += " missing"
		}
		out = append(out, text)
	}
	return out
}

func testLease(t *testing.T, c *cluster) {
	a := c.open(t, "host-a", vxlanConf)
	c.add(t, "host-a", nil, "10.244.1.0/24")
	await(t, a)
	l := acquire(t, a, claim(t, "host-a", 1))
	if l.Subnet().String() != "10.244.1.0/24" || l.Slot != 1 || !l.Held() || l.ModifyIndex == 0 {
		t.Errorf("acquired %+v", l)
	}
	_, index := await(t, a, "host-a 10.244.1.0/24")
	again := acquire(t, a, claim(t, "host-a", 1))
	if again.ModifyIndex != l.ModifyIndex || again.CreateIndex != l.CreateIndex || again.Session != l.Session {
		t.Errorf("the same claim wrote the record again: %+v, then %+v", l, again)
	}
	if err := a.Renew(t.Context(), l); err != nil {
		t.Error(err)
	}
	changed := claim(t, "host-a", 1)
	changed.MTU = 1400
	l = acquire(t, a, changed)
	set, next := awaitSet(t, a, func(s registry.LeaseSet) bool { return s.Leases[0].MTU == 1400 }, "another MTU")
	if next == index {
		t.Errorf("index %d did not change", index)
	}
	watched, _, err := a.WatchLease(t.Context(), network(t, a), l.Subnet(), 0)
	if err != nil || !watched.SameValue(l) || watched.Session != l.Session || !set.Leases[0].SameValue(l) {
		t.Errorf("watched %+v, %v; listed %+v; want %+v", watched, err, set.Leases[0], l)
	}
	if err := a.Release(t.Context(), l); err != nil {
		t.Error(err)
	}
	await(t, a)
	_, index, err = a.WatchLease(t.Context(), network(t, a), l.Subnet(), 0)
	if !errors.Is(err, registry.ErrLeaseNotFound) || index == 0 {
		t.Errorf("a released lease: index %d, %v", index, err)
	}
}

func testTwoHosts(t *testing.T, c *cluster) {
	a, b := c.open(t, "host-a", vxlanConf), c.open(t, "host-b", vxlanConf)
	c.add(t, "host-b", nil, "10.244.0.0/24") // flannel's SubnetMin does not limit what Kubernetes assigns
	c.add(t, "host-a", nil, "10.244.7.0/24")
	c.add(t, "unused", nil, "10.244.9.0/24")
	acquire(t, a, claim(t, "host-a", 1))
	await(t, b, "host-a 10.244.7.0/24")
	a.Reconnect() // the clients stay usable
	b.Reconnect()
	acquire(t, b, claim(t, "host-b", 2))
	await(t, a, "host-b 10.244.0.0/24", "host-a 10.244.7.0/24")
	holders, err := a.Holders(t.Context(), DefaultNetwork)
	if err != nil || len(holders) != 2 || holders[0].Node != "host-a" || holders[1].Session == "" {
		t.Errorf("holders %+v, %v", holders, err)
	}
	c.DeleteNode(t, "host-b")
	await(t, a, "host-a 10.244.7.0/24")
}

func testDuplicate(t *testing.T, c *cluster) {
	a, b := c.open(t, "host-a", vxlanConf), c.open(t, "host-b", vxlanConf)
	c.add(t, "host-a", nil, "10.244.1.0/24")
	c.add(t, "host-b", nil, "10.244.2.0/24")
	acquire(t, a, claim(t, "host-a", 1))
	sameID := claim(t, "host-b", 2)
	sameID.NodeID = "id-host-a"
	for _, tt := range []struct {
		name  string
		claim registry.Claim
		err   error
	}{
		{"same name", claim(t, "host-a", 2), registry.ErrDuplicateNode},
		{"same node id", sameID, registry.ErrDuplicateNode},
		{"same address", claim(t, "host-b", 1), registry.ErrDuplicateAddress},
	} {
		if tt.name == "same name" {
			tt.claim.NodeID = "id-host-b"
		}
		_, err := b.Acquire(t.Context(), network(t, b), tt.claim)
		rival := &registry.RivalError{}
		if !errors.Is(err, tt.err) || !errors.As(err, &rival) || rival.Lease.Node != "host-a" {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.err)
		}
	}
	if len(c.Annotations(t, "host-b")) > 0 {
		t.Error("a refused claim was written")
	}
}

// testSharedSubnet: of two Nodes with the same subnet, only the older one's host uses it.
func testSharedSubnet(t *testing.T, c *cluster) {
	a, b := c.open(t, "host-a", vxlanConf), c.open(t, "host-b", vxlanConf)
	c.add(t, "host-a", nil, "10.244.1.0/24")
	c.add(t, "host-b", nil, "10.244.1.0/24")
	l := acquire(t, b, claim(t, "host-b", 2))
	acquire(t, a, claim(t, "host-a", 1))
	watched, _, err := b.WatchLease(t.Context(), network(t, b), l.Subnet(), 0)
	if err != nil || watched.Node != "host-a" {
		t.Errorf("the subnet is that of %+v, %v", watched, err)
	}
	set, _ := await(t, b, "host-a 10.244.1.0/24")
	if len(set.Bad) != 1 || !strings.Contains(set.Bad[0].Reason, "that of nodes/host-a") {
		t.Errorf("bad records %+v", set.Bad)
	}
	running := claim(t, "host-b", 2)
	running.Session, running.Prefer, running.Since, running.Running = l.Session, l.Subnet(), l.ModifyIndex, true
	for _, refused := range []registry.Claim{running, claim(t, "host-b", 2)} {
		_, err = b.Acquire(t.Context(), network(t, b), refused)
		if !errors.Is(err, registry.ErrHeld) || !strings.Contains(err.Error(), "10.244.1.0/24 is that of nodes/host-a") {
			t.Errorf("acquired the other Node's subnet: %v", err)
		}
	}
	c.Annotate(t, "host-a", map[string]any{lenoAnnotation: "x"}) // a record that no host can use takes nothing
	await(t, b, "host-b 10.244.1.0/24")
	if again := acquire(t, b, running); again.ModifyIndex != l.ModifyIndex {
		t.Errorf("acquired %+v, held %+v", again, l)
	}
	watched, _, err = b.WatchLease(t.Context(), network(t, b), l.Subnet(), 0)
	if err != nil || watched.Node != "host-b" {
		t.Errorf("the subnet is that of %+v, %v", watched, err)
	}
}

// testSharedNode: of two hosts with the same Node, the one that has its lease keeps it.
func testSharedNode(t *testing.T, c *cluster) {
	a, b := c.open(t, "host-a", vxlanConf), c.open(t, "host-a", vxlanConf)
	c.add(t, "host-a", nil, "10.244.1.0/24")
	l := acquire(t, a, claim(t, "host-a", 1))
	second := claim(t, "host-b", 2)
	_, err := b.Acquire(t.Context(), network(t, b), second)
	rival := &registry.RivalError{}
	if !errors.Is(err, registry.ErrDuplicateNode) || !errors.As(err, &rival) || rival.Lease.NodeID != "id-host-a" {
		t.Errorf("acquired the other host's Node: %v", err)
	}
	const remedy = "kubectl annotate node host-a leno.lenonet.io/lease-"
	if text := fmt.Sprint(err); !strings.Contains(text, "node_name") || !strings.Contains(text, remedy) {
		t.Errorf("%s does not say what to do", text)
	}
	restored := second // the store shows a lease again that was there before this host's
	restored.Prefer, restored.Since, restored.Running = l.Subnet(), l.ModifyIndex+1, true
	now := acquire(t, b, restored)
	watched, _, err := a.WatchLease(t.Context(), network(t, a), l.Subnet(), 0)
	if err != nil || watched.NodeID != "id-host-b" || watched.Session != now.Session || watched.Session == l.Session {
		t.Errorf("watched %+v, %v; the other host's is %+v", watched, err, now)
	}
	c.Annotate(t, "host-a", map[string]any{lenoAnnotation: nil})
	acquire(t, a, claim(t, "host-a", 1))
}

func testTakeOver(t *testing.T, c *cluster) {
	a := c.open(t, "host-a", vxlanConf)
	c.add(t, "host-a", flannelNode(1), "10.244.1.0/24")
	acquire(t, a, claim(t, "host-a", 1))
	reinstalled := claim(t, "host-a", 1)
	reinstalled.NodeID = "id-other"
	l := acquire(t, a, reinstalled)
	set, _ := await(t, a, "host-a 10.244.1.0/24")
	if l.NodeID != "id-other" || set.Leases[0].NodeID != "id-other" {
		t.Errorf("acquired %+v, listed %+v", l, set.Leases)
	}
}

func testLost(t *testing.T, c *cluster) {
	a := c.open(t, "host-a", vxlanConf)
	c.add(t, "host-a", nil, "10.244.1.0/24")
	l := acquire(t, a, claim(t, "host-a", 1))
	other := claim(t, "host-a", 1)
	other.NodeID = "id-other"
	acquire(t, a, other)
	renew := func(when string) {
		t.Helper()
		if err := a.Renew(t.Context(), l); !errors.Is(err, registry.ErrLeaseLost) {
			t.Errorf("%s: %v", when, err)
		}
		if err := a.Release(t.Context(), l); err != nil {
			t.Errorf("release, %s: %v", when, err)
		}
	}
	renew("another host has the node")
	await(t, a, "host-a 10.244.1.0/24") // the release left it alone
	l = acquire(t, a, claim(t, "host-a", 1))
	c.DeleteNode(t, "host-a")
	renew("the node was deleted")
	c.AddNode(t, "host-a", nil, "10.244.1.0/24")
	renew("the node was created again")
	acquire(t, a, claim(t, "host-a", 1))
	renew("the node was acquired again")
	await(t, a, "host-a 10.244.1.0/24")
}

func testRelease(t *testing.T, c *cluster) {
	a := c.open(t, "host-a", vxlanConf)
	c.add(t, "host-a", map[string]string{"example.com/role": "db"}, "10.244.1.0/24")
	l := acquire(t, a, claim(t, "host-a", 1))
	if err := a.Release(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if got := c.Annotations(t, "host-a"); len(got) != 1 || got["example.com/role"] != "db" {
		t.Errorf("after the release, the annotations are %v", got)
	}
	l = acquire(t, a, claim(t, "host-a", 1))
	changes := map[string]any{}
	for name, value := range flannelNode(1) {
		changes[name] = value
	}
	c.Annotate(t, "host-a", changes) // flannel was started there
	if err := a.Release(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	got := c.Annotations(t, "host-a")
	if _, left := got[lenoAnnotation]; left || len(got) != 1+len(changes) {
		t.Errorf("after the release beside flannel, the annotations are %v", got)
	}
	await(t, a, "host-a 10.244.1.0/24")
}

func testHeartbeat(t *testing.T, c *cluster) {
	a := c.open(t, "host-a", vxlanConf)
	c.add(t, "host-a", nil, "10.244.1.0/24")
	acquire(t, a, claim(t, "host-a", 1))
	set, index := await(t, a, "host-a 10.244.1.0/24")
	c.Annotate(t, "host-a", map[string]any{"example.com/heartbeat": "1"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, _, err := a.WatchLeases(ctx, network(t, a), index); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a change of something else: %v", err)
	}
	again, next, err := a.WatchLeases(t.Context(), network(t, a), 0)
	if err != nil || next != index || again.Leases[0].ModifyIndex != set.Leases[0].ModifyIndex {
		t.Errorf("index %d, then %d, %v; %+v", index, next, err, again)
	}
}

func testDualStack(t *testing.T, c *cluster) {
	const conf = `{"EnableIPv6":true,"Network":"10.244.0.0/16","IPv6Network":"fd00:10:244::/48",` +
		`"Backend":{"Type":"vxlan"}}`
	a, b := c.open(t, "host-a", conf), c.open(t, "host-b", conf)
	c.add(t, "host-a", nil, "fd00:10:244:1::/64", "10.244.1.0/24")
	c.add(t, "host-b", nil, "10.244.2.0/24", "fd00:10:244:3::/64")
	both := claim(t, "host-a", 1)
	both.PublicIPs = append(both.PublicIPs, netip.MustParseAddr("2001:db8::1"))
	l := acquire(t, a, both)
	if got := fmt.Sprint(l.Subnets); got != "[10.244.1.0/24 fd00:10:244:1::/64]" {
		t.Errorf("subnets %s", got)
	}
	have := c.Annotations(t, "host-a")
	if have[DefaultAnnotationPrefix+"/public-ipv6"] != "2001:db8::1" ||
		!strings.Contains(have[DefaultAnnotationPrefix+"/backend-v6-data"], "0a:58:00:00:00:01") {
		t.Errorf("annotations %v", have)
	}
	await(t, b, "host-a 10.244.1.0/24")
	_, err := b.Acquire(t.Context(), network(t, b), claim(t, "host-b", 2))
	if !errors.Is(err, registry.ErrInvalid) || !strings.Contains(err.Error(), "the same number") {
		t.Errorf("subnets of different slots: %v", err)
	}
}

func testUnsupported(t *testing.T, c *cluster) {
	a := c.open(t, "host-a", vxlanConf)
	ctx, subnet, n := t.Context(), netip.MustParsePrefix("10.244.1.0/24"), network(t, a)
	for name, err := range map[string]error{
		"PutNetwork":        a.PutNetwork(ctx, n),
		"DeleteNetwork":     a.DeleteNetwork(ctx, n.Name),
		"PutDeletion":       a.PutDeletion(ctx, registry.Deletion{Network: n.Name}),
		"Revoke":            a.Revoke(ctx, n.Name, subnet),
		"Expire":            a.Expire(ctx, registry.Lease{Subnets: []netip.Prefix{subnet}}),
		"Restore":           a.Restore(ctx, n, registry.Lease{Subnets: []netip.Prefix{subnet}}, time.Hour),
		"AddReservation":    a.AddReservation(ctx, n, registry.Reservation{Subnet: subnet, Node: "b"}, false),
		"RemoveReservation": a.RemoveReservation(ctx, n.Name, subnet),
	} {
		if !errors.Is(err, registry.ErrNotSupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	set, index, err := a.WatchReservations(ctx, n, 0)
	if err != nil || len(set.Reservations) > 0 {
		t.Fatalf("reservations %+v, %v", set, err)
	}
	limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, _, err := a.WatchReservations(limited, n, index); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("reservations that do not change: %v", err)
	}
	if name, err := a.Abilities().NodeName(ctx); name != "host-a" || err != nil {
		t.Errorf("node name %q, %v", name, err)
	}
}

func testRights(t *testing.T, c *cluster) {
	c.add(t, "host-a", nil, "10.244.1.0/24")
	a := c.open(t, "host-a", vxlanConf, func(o *Config) { o.Kubeconfig = c.Kubeconfig(t, kubetest.UserToken) })
	n := network(t, a)
	_, err := a.Acquire(t.Context(), n, claim(t, "host-a", 1))
	wantDenied := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, registry.ErrDenied) {
			t.Errorf("%s: %v, want %v", what, err, registry.ErrDenied)
		}
	}
	wantDenied("acquire", err)
	_, _, err = a.WatchLeases(t.Context(), n, 0)
	wantDenied("watch leases", err)
	wantDenied("probe", a.Probe(t.Context()))
	_, _, err = a.As("no such token").WatchLeases(t.Context(), n, 0)
	wantDenied("an unknown token", err)
	if text := fmt.Sprint(err); errors.Is(err, registry.ErrToken) || !strings.Contains(text, "accept the request's token") {
		t.Errorf("an unknown token: %s", text)
	}
	_, _, err = a.As("").WatchLeases(t.Context(), n, 0)
	wantDenied("no token", err)
	if set, _, err := a.As(kubetest.AdminToken).WatchLeases(t.Context(), n, 0); err != nil || len(set.Leases) > 0 {
		t.Errorf("the administrator's token: %+v, %v", set, err)
	}
	c.Apply(t, "../../examples/kubernetes/leno.yaml")
	c.Allow(t, "leno")
	waiting.Eventually(t, func() error { return a.Probe(t.Context()) }) // until the server knows them
	l := acquire(t, a, claim(t, "host-a", 1))
	await(t, a, "host-a 10.244.1.0/24")
	if err := a.Release(t.Context(), l); err != nil {
		t.Error(err)
	}
	testConfigMapRight(t, c)
}

// testConfigMapRight reads the one ConfigMap that the Role of the example grants.
func testConfigMapRight(t *testing.T, c *cluster) {
	const path = "/api/v1/namespaces/kube-flannel/configmaps"
	for _, name := range []string{"kube-flannel-cfg", "other"} {
		c.Do(t, "POST", path, map[string]any{
			"metadata": map[string]any{"name": name},
			"data":     map[string]string{"net-conf.json": vxlanConf},
		})
	}
	from := func(name string) *Client {
		return c.open(t, "host-a", "", func(o *Config) {
			o.Kubeconfig = c.Kubeconfig(t, kubetest.UserToken)
			o.ConfigMap = ConfigMap{"kube-flannel", name, "net-conf.json"}
		})
	}
	a, other := from("kube-flannel-cfg"), from("other")
	if _, err := a.Network(t.Context(), DefaultNetwork); !errors.Is(err, registry.ErrDenied) {
		t.Errorf("without the Role: %v", err)
	}
	c.AllowIn(t, "kube-flannel", "leno")
	waiting.Eventually(t, func() error { // until the server knows it
		_, err := a.Network(t.Context(), DefaultNetwork)
		return err
	})
	if _, err := other.Network(t.Context(), DefaultNetwork); !errors.Is(err, registry.ErrDenied) {
		t.Errorf("another ConfigMap: %v", err)
	}
}
