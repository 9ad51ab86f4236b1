package store

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/traffic"
	"github.com/lenonet/leno/e2e/world"
)

// TestQuorumLost stops two of three Consul servers, so that the third responds but cannot commit:
// neither a packet nor a lease is lost.
func TestQuorumLost(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2, Servers: 3})
	w.StartNetwork("vxlan")
	h := w.Hosts[0]
	subnet := w.Subnet(h, "default")
	w.WaitHealth(h, http.StatusOK)
	whole := traffic.Watch(w.World)
	lost := w.Servers[1:]
	for _, server := range lost {
		w.Must(server.Kill())
	}
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusTooManyRequests, "there is no certain answer")
	}
	if status, _, err := h.Get(w.Ctx, "/readyz"); err != nil || status != http.StatusOK {
		t.Errorf("readyz %d without a quorum, %v", status, err)
	}
	w.Must(lab.StartAll(w.Ctx, lost))
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}
	whole()
	if got := w.Subnet(h, "default"); got != subnet {
		t.Errorf("subnet %s, before %s", got, subnet)
	}
	w.Eventually("all leases to be held", func(context.Context) error {
		for _, l := range w.Leases(h, "default").Leases {
			if !l.Held {
				return fmt.Errorf("%+v", l)
			}
		}
		return nil
	})
}

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
