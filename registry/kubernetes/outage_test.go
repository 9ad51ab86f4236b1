package kubernetes

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/waiting"
	"github.com/lenonet/leno/registry"
)

// testOutage watches the leases while the API server is away, until it is back with no lease lost.
func testOutage(t *testing.T, c *cluster) {
	a := c.open(t, "host-a", vxlanConf)
	c.add(t, "host-a", nil, "10.244.1.0/24")
	c.add(t, "host-f", flannelNode(9), "10.244.2.0/24")
	acquire(t, a, claim(t, "host-a", 1))
	set, index := await(t, a, "host-a 10.244.1.0/24", "host-f 10.244.2.0/24")
	n := network(t, a)
	for _, away := range []func(){c.Stop, c.Pause} {
		away()
		wantOutage(t, a, n, set, index)
		c.Restart()
		back := time.Now()
		again, next, err := a.WatchLeases(t.Context(), n, index)
		if err != nil || next != index || !slices.Equal(texts(again), texts(set)) {
			t.Errorf("after the outage: %q, index %d after %d, %v", texts(again), next, index, err)
		}
		if at := a.Followed(n.Name); at.Before(back) {
			t.Errorf("after the outage: followed until %v before it", back.Sub(at))
		}
	}
	c.DeleteNode(t, "host-f")
	await(t, a, "host-a 10.244.1.0/24")
}

func wantOutage(t *testing.T, a *Client, n registry.Network, set registry.LeaseSet, index uint64) {
	t.Helper()
	if a.Followed(n.Name).IsZero() {
		t.Error("the leases are not followed before the outage")
	}
	begun := time.Now()
	if _, _, err := a.WatchLeases(t.Context(), n, index); !errors.Is(err, registry.ErrUnavailable) {
		t.Errorf("while the server is away: %v", err)
	}
	noticed := time.Since(begun)
	if err := a.Renew(t.Context(), set.Leases[0]); !errors.Is(err, registry.ErrUnavailable) {
		t.Errorf("renew while the server is away: %v", err)
	}
	if took := time.Since(begun); took > time.Minute { // a few times as long as the client's limits, on a busy machine
		t.Errorf("it took %v to notice", took)
	}
	at := a.Followed(n.Name)
	time.Sleep(100 * time.Millisecond)
	late := max(0, noticed-2*keepAliveTime) // on a busy machine, a connection is checked late
	if now := a.Followed(n.Name); at.IsZero() || at.After(begun.Add(late)) || !now.Equal(at) {
		t.Errorf("followed %v after the outage began, and then %v", at.Sub(begun), now.Sub(begun))
	}
}

// testCompaction loses a Node without a change that tells it.
func testCompaction(t *testing.T, c *cluster) {
	a := c.open(t, "host-a", vxlanConf)
	c.add(t, "host-a", nil, "10.244.1.0/24")
	c.add(t, "host-f", flannelNode(9), "10.244.2.0/24")
	acquire(t, a, claim(t, "host-a", 1))
	await(t, a, "host-a 10.244.1.0/24", "host-f 10.244.2.0/24")
	c.Stop()
	resp, err := c.Etcd.Client(t).Delete(t.Context(), "/registry/minions/host-f")
	if err != nil || resp.Deleted != 1 {
		t.Fatalf("deleted %d, %v", resp.Deleted, err)
	}
	c.Etcd.Compact(t, resp.Header.Revision)
	waiting.Until(t, "the client has noticed the outage", func() bool { return a.own.mirror.Followed() == nil })
	c.Restart()
	await(t, a, "host-a 10.244.1.0/24", "host-f 10.244.2.0/24 missing")
	a.Abilities().SetSettle(time.Second)
	await(t, a, "host-a 10.244.1.0/24")
	c.add(t, "host-f", flannelNode(9), "10.244.2.0/24") // changes are followed again
	await(t, a, "host-a 10.244.1.0/24", "host-f 10.244.2.0/24")
}

// TestForeignNotFound: only Kubernetes itself says that there is no such Node. A proxy in front of it says nothing.
func TestForeignNotFound(t *testing.T) {
	for body, want := range map[string]error{
		`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"nodes \"host-a\" not found","reason":"NotFound","code":404}`: registry.ErrLeaseLost,
		"<html>default backend - 404</html>":              registry.ErrUnavailable,
		`{"message":"no such route"}`:                     registry.ErrUnavailable,
		`{"kind":"Status","code":404}`:                    registry.ErrUnavailable, // of an API that is not served
		`{"kind":"Error","reason":"NotFound","code":404}`: registry.ErrUnavailable,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, body, http.StatusNotFound)
		}))
		t.Cleanup(server.Close)
		files := credentials{dir: t.TempDir(), server: server.URL}
		files.write(t, "ca.crt", otherCA(t))
		files.config(t, "token: x")
		a := (&cluster{config: files.path("kubeconfig")}).open(t, "host-a", vxlanConf)
		l := registry.Lease{Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
		if err := a.Renew(t.Context(), l); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", body, err, want)
		}
	}
}
