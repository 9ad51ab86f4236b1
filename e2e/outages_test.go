package e2e

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
)

// TestQuorumLost takes two of three Consul servers away, so that the third answers
// and decides nothing: neither a packet nor a lease is lost.
func TestQuorumLost(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2, Servers: 3})
	w.startNetwork("vxlan")
	h := w.Hosts[0]
	subnet := w.subnet(h, "default")
	w.waitHealth(h, http.StatusOK)
	whole := w.undisturbed()
	lost := w.Servers[1:]
	for _, server := range lost {
		w.must(server.Kill())
	}
	for _, h := range w.Hosts {
		w.waitHealth(h, http.StatusTooManyRequests, "there is no certain answer")
	}
	if status, _, err := h.Get(w.ctx, "/readyz"); err != nil || status != http.StatusOK {
		t.Errorf("readyz %d without a quorum, %v", status, err)
	}
	w.must(lab.StartAll(w.ctx, lost))
	for _, h := range w.Hosts {
		w.waitHealth(h, http.StatusOK)
	}
	whole()
	if got := w.subnet(h, "default"); got != subnet {
		t.Errorf("subnet %s, before %s", got, subnet)
	}
	for _, l := range w.leases(h, "default").Leases {
		if !l.Held {
			t.Errorf("lease of %s is not held", l.Node)
		}
	}
}

// TestTokenLost deletes the token of an agent for longer than its session lives: its
// lease lapses, and nothing else happens until there is another token.
func TestTokenLost(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2, ConsulConfig: fmt.Sprintf(denying, `"initial_management": "`+operatorToken+`", `)})
	a, b := w.Hosts[0], w.Hosts[1]
	file, tokens := func(h *lab.Host) string { return filepath.Join(h.Dir, "token") }, map[*lab.Host]string{}
	for _, h := range w.Hosts {
		tokens[h] = w.newToken(h.Name, hostRules)
		w.must(os.WriteFile(file(h), []byte(tokens[h]+"\n"), 0o600))
		text := h.Config(shortLease, h.Network("default", plan("vxlan")))
		w.must(h.StartAgent(strings.Replace(text, "consul {\n", fmt.Sprintf("consul {\n  token_file = %q\n", file(h)), 1)))
		w.must(h.WaitReady(w.ctx))
		w.container(h, "default")
	}
	w.settle("default")
	subnet := w.subnet(a, "default")
	whole := w.undisturbed()

	acl, under := w.Consul.Client().ACL(), &consul.WriteOptions{Token: operatorToken}
	self, _, err := acl.TokenReadSelf(&consul.QueryOptions{Token: tokens[a]})
	w.must(err)
	_, err = acl.TokenDelete(self.AccessorID, under)
	w.must(err)
	w.waitHealth(a, http.StatusTooManyRequests, "not renewed since")
	w.eventually("the lease to lapse", func(ctx context.Context) error {
		for _, l := range w.leases(b, "default").Leases {
			if l.Node == a.Name && l.Held {
				return fmt.Errorf("%+v", l)
			}
		}
		return nil
	})
	w.waitHealth(b, http.StatusOK)
	w.waitPeers(b, "default", 1)

	w.must(os.WriteFile(file(a), []byte(w.newToken("another", hostRules)+"\n"), 0o600))
	w.waitHealth(a, http.StatusOK)
	whole()
	if got := w.subnet(a, "default"); got != subnet {
		t.Errorf("subnet %s, before %s", got, subnet)
	}
}
