package access

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/traffic"
	"github.com/lenonet/leno/e2e/world"
)

// TestTokenLost deletes an agent's token for longer than its session lives: its lease lapses, and
// nothing else happens until there is a new token.
func TestTokenLost(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2, ConsulConfig: fmt.Sprintf(denying, `"initial_management": "`+world.OperatorToken+`", `)})
	a, b := w.Hosts[0], w.Hosts[1]
	file, tokens := func(h *lab.Host) string { return filepath.Join(h.Dir, "token") }, map[*lab.Host]string{}
	for _, h := range w.Hosts {
		tokens[h] = w.newToken(h.Name, hostRules)
		w.Must(os.WriteFile(file(h), []byte(tokens[h]+"\n"), 0o600))
		text := h.Config(world.ShortLease, h.Network("default", world.Plan("vxlan")))
		w.Must(h.StartAgent(strings.Replace(text, "consul {\n", fmt.Sprintf("consul {\n  token_file = %q\n", file(h)), 1)))
		w.Must(h.WaitReady(w.Ctx))
		w.Container(h, "default")
	}
	w.Settle("default")
	subnet := w.Subnet(a, "default")
	whole := traffic.Watch(w.World)

	acl, under := w.Consul.Client().ACL(), &consul.WriteOptions{Token: world.OperatorToken}
	self, _, err := acl.TokenReadSelf(&consul.QueryOptions{Token: tokens[a]})
	w.Must(err)
	_, err = acl.TokenDelete(self.AccessorID, under)
	w.Must(err)
	w.WaitHealth(a, http.StatusTooManyRequests, "not renewed since")
	w.Eventually("doctor to name the token", func(ctx context.Context) error {
		text, _ := a.Leno(ctx, "doctor", "-passive", "-format=json") // there is a fault
		for _, words := range []string{"ACL not found", "examples/consul/policy.hcl (consul.token_file)"} {
			if !strings.Contains(text, words) {
				return fmt.Errorf("it does not say %q: %s", words, text)
			}
		}
		return nil
	})
	w.Eventually("the lease to lapse", func(ctx context.Context) error {
		for _, l := range w.Leases(b, "default").Leases {
			if l.Node == a.Name && l.Held {
				return fmt.Errorf("%+v", l)
			}
		}
		return nil
	})
	w.WaitHealth(b, http.StatusOK)
	w.WaitPeers(b, "default", 1)

	w.Must(os.WriteFile(file(a), []byte(w.newToken("another", hostRules)+"\n"), 0o600))
	w.WaitHealth(a, http.StatusOK)
	whole()
	if got := w.Subnet(a, "default"); got != subnet {
		t.Errorf("subnet %s, before %s", got, subnet)
	}
}

// TestNetworkLostWithoutTheRight checks that agents without the right to define networks keep
// running a network that Consul has lost, across their restarts, and report the problem until it is
// back.
func TestNetworkLostWithoutTheRight(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2, ConsulConfig: fmt.Sprintf(denying, `"initial_management": "`+world.OperatorToken+`", `)})
	const joining = hostRules + "\n" + `key_prefix "leno/networks/" { policy = "list" }`
	under := &consul.WriteOptions{Token: world.OperatorToken}
	kv := w.Consul.Client().KV()
	for _, h := range w.Hosts {
		text := h.Config(world.ShortLease, h.Network("default", ""))
		w.Must(h.StartAgent(strings.Replace(text, "consul {\n", fmt.Sprintf("consul {\n  token = %q\n", w.newToken(h.Name, joining)), 1)))
	}
	w.WaitHealth(w.Hosts[0], http.StatusServiceUnavailable, "leno network apply")
	w.Apply("default", world.Plan("vxlan"), "-token="+world.OperatorToken)
	for _, h := range w.Hosts {
		w.Must(h.WaitReady(w.Ctx))
		w.Container(h, "default")
	}
	w.Settle("default")
	subnets := []netip.Prefix{w.Subnet(w.Hosts[0], "default"), w.Subnet(w.Hosts[1], "default")}
	whole := traffic.Watch(w.World)
	reading := &consul.QueryOptions{Token: world.OperatorToken}
	before := w.Stored("default", reading)
	_, err := kv.DeleteTree("leno/", under)
	w.Must(err)
	lost := func() {
		t.Helper()
		for _, h := range w.Hosts {
			w.WaitHealth(h, http.StatusTooManyRequests, "the store has lost the network's definition", "cannot put it back", "permission denied")
		}
	}
	lost()
	w.Must(w.Hosts[0].StopAgent(w.Ctx))
	w.Must(w.Hosts[0].RestartAgent())
	lost()
	w.WaitPeers(w.Hosts[0], "default", 1)

	w.Apply("default", world.Plan("vxlan"), "-token="+world.OperatorToken)
	for i, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
		if got := w.Subnet(h, "default"); got != subnets[i] {
			t.Errorf("%s has %s, before %s", h.Name, got, subnets[i])
		}
	}
	if now := w.Stored("default", reading); now.Revision != before.Revision || now.Restored.IsZero() {
		t.Errorf("the definition that was put back is revision %q, restored at %s; before, it was %q",
			now.Revision, now.Restored, before.Revision)
	}
	whole()
}
