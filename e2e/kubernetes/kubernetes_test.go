package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/traffic"
	"github.com/lenonet/leno/e2e/world"
	"github.com/lenonet/leno/internal/testkit/kubetest"
)

// kubeNetConf is flannel's configuration in the tests.
const kubeNetConf = `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`

// flannelPrefix begins the names of flannel's annotations, lenoRecord is leno's own.
const (
	flannelPrefix = "flannel.alpha.coreos.com/"
	lenoRecord    = "leno.lenonet.io/lease"
)

// kubeWorld is a lab whose hosts are nodes of an API server, which runs in the namespace of the lab's etcd.
type kubeWorld struct {
	*world.World
	api *kubetest.Server
}

// newKubeWorld starts the API server with a Node for each host but the last one, which is there for a test to use.
func newKubeWorld(t *testing.T, hosts int) *kubeWorld {
	w := &kubeWorld{}
	files := t.TempDir()
	w.World = world.New(t, lab.Options{
		Hosts: hosts,
		Store: lab.StoreEtcd,
		StoreBlock: func(h *lab.Host) string {
			source := fmt.Sprintf("net_conf   = %q", filepath.Join(files, "net-conf.json"))
			if h.Name == "host-b" {
				source = `config_map = "kube-flannel/kube-flannel-cfg"`
			}
			return fmt.Sprintf("kubernetes {\n  kubeconfig = %q\n  node_name  = %q\n  %s\n}",
				filepath.Join(files, "kubeconfig"), h.Name, source)
		},
	})
	w.api = kubetest.StartWith(t, kubetest.Options{
		Addr:   netip.AddrPortFrom(w.Etcd.Addr, 6443),
		Etcd:   "http://" + w.Etcd.Address(),
		Within: w.Etcd.Namespace.Do,
		Dial:   w.Etcd.Namespace.DialContext,
	})
	w.Must(os.WriteFile(filepath.Join(files, "net-conf.json"), []byte(kubeNetConf), 0o644))
	w.Must(os.Rename(w.api.Kubeconfig(t, kubetest.UserToken), filepath.Join(files, "kubeconfig")))
	w.api.Apply(t, "../../examples/kubernetes/leno.yaml")
	w.api.Allow(t, "leno")
	w.api.AllowIn(t, "kube-flannel", "leno")
	w.api.Do(t, "POST", "/api/v1/namespaces/kube-flannel/configmaps", map[string]any{
		"metadata": map[string]any{"name": "kube-flannel-cfg"},
		"data":     map[string]string{"net-conf.json": kubeNetConf},
	})
	for i, h := range w.Hosts[:hosts-1] {
		w.api.AddNode(t, h.Name, nil, kubeSubnet(i))
	}
	return w
}

// kubeSubnet returns the podCIDR of the host with an index.
func kubeSubnet(i int) string { return fmt.Sprintf("10.5.%d.0/24", 11+i) }

// layFlannelNode makes a host what flanneld makes of a node: its annotations, its device, and the entries for peers.
func (w *kubeWorld) layFlannelNode(h *lab.Host, subnet string, peers []*lab.Host) *lab.Container {
	w.T.Helper()
	const mac = "c6:d2:32:6f:8f:44"
	own := netip.MustParsePrefix(subnet)
	lines := []string{
		fmt.Sprintf("ip link add flannel.1 type vxlan id 1 dev eth0 local %s dstport 8472 nolearning", h.Addrs[0]),
		fmt.Sprintf("ip link set flannel.1 address %s mtu 1450 up", mac),
		fmt.Sprintf("ip address add %s/32 dev flannel.1", own.Addr()),
	}
	for _, peer := range peers {
		other := w.Subnet(peer, "default")
		var data struct{ VtepMAC string }
		w.Must(json.Unmarshal([]byte(w.api.Annotations(w.T, peer.Name)[flannelPrefix+"backend-data"]), &data))
		its := data.VtepMAC
		lines = append(lines,
			fmt.Sprintf("ip neighbour replace %s lladdr %s dev flannel.1 nud permanent", other.Addr(), its),
			fmt.Sprintf("bridge fdb append %s dev flannel.1 dst %s", its, peer.Addrs[0]),
			fmt.Sprintf("ip route add %s via %s dev flannel.1 onlink", other, other.Addr()))
	}
	_, err := h.Exec(w.Ctx, "sh", "-euc", strings.Join(lines, "\n"))
	w.Must(err)
	env := fmt.Sprintf("LENO_SUBNET=%s/24\nLENO_MTU=1450\n", own.Addr().Next())
	w.Must(os.WriteFile(h.SubnetFile("default"), []byte(env), 0o644))
	w.api.AddNode(w.T, h.Name, map[string]string{
		flannelPrefix + "kube-subnet-manager": "true",
		flannelPrefix + "backend-type":        "vxlan",
		flannelPrefix + "backend-data":        fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, mac),
		flannelPrefix + "public-ip":           h.Addrs[0].String(),
	}, subnet)
	return w.Container(h, "default")
}

// waitCheck blocks until a check of the network has the status and all words in its reason.
func (w *kubeWorld) waitCheck(h *lab.Host, name, status string, words ...string) {
	w.T.Helper()
	what := fmt.Sprintf("%s: check %s %s %q", h.Name, name, status, words)
	w.Eventually(what, func(context.Context) error {
		_, health := w.Health(h)
		for _, n := range health.Networks {
			for _, c := range n.Checks {
				lacks := func(word string) bool { return !strings.Contains(c.Reason, word) }
				if c.Name == name && c.Status == status && !slices.ContainsFunc(words, lacks) {
					return nil
				}
			}
		}
		return fmt.Errorf("%+v", health)
	})
}

// limit is how long a reaction of an agent may take, by the time of its events: this test may see it later. On a quiet machine
// each takes at most a quarter, and the failure-modes page promises 15 s: only a fault takes longer, not a busy machine.
const limit = time.Minute

// healthy blocks until all hosts report that nothing is wrong.
func (w *kubeWorld) healthy(hosts []*lab.Host) {
	w.T.Helper()
	began := time.Now()
	for _, h := range hosts {
		w.Must(h.WaitReady(w.Ctx)) // health may pass before the subnet file is there
		w.WaitHealth(h, http.StatusOK)
		if all := w.CheckEvents(h, began, func(api.Event) bool { return true }); len(all) > 0 {
			took := all[len(all)-1]
			w.T.Logf("%s: healthy after %s", h.Name, took)
			if took > limit {
				w.T.Errorf("%s: healthy only after %s, want at most %s", h.Name, took, limit)
			}
		}
	}
}

// onlyKubernetes checks that the agents are connected to the API server alone, not to Consul or etcd.
func (w *kubeWorld) onlyKubernetes(hosts []*lab.Host) {
	w.T.Helper()
	for _, h := range hosts {
		sockets, err := h.Exec(w.Ctx, "ss", "-Htanp")
		w.Must(err)
		if strings.Contains(sockets, ":8500") || strings.Contains(sockets, ":2379") || !strings.Contains(sockets, ":6443") {
			w.T.Errorf("%s: sockets\n%s", h.Name, sockets)
		}
	}
}

// TestKubernetes runs hosts as nodes of a real API server. A node without podCIDR, one with flannel and one with broken
// annotations join; the API server is killed for 20 s, and an agent with it; the agents lose their rights. No ping and
// no route is lost, no host gets another subnet, and health names what is wrong.
func TestKubernetes(t *testing.T) {
	w := newKubeWorld(t, 4)
	a, b, late, foreign := w.Hosts[0], w.Hosts[1], w.Hosts[2], w.Hosts[3]
	hosts := w.Hosts[:3]
	w.api.DeleteNode(t, late.Name)
	w.api.AddNode(t, late.Name, nil)
	for _, h := range hosts {
		w.Must(h.StartAgent(h.Config(world.ShortLease, h.Network("default", ""))))
	}
	w.healthy(hosts[:2])
	w.waitCheck(late, "lease", "critical", "node host-c has no podCIDR")

	t.Log("the node without podCIDR gets one")
	w.api.Do(t, "PATCH", "/api/v1/nodes/"+late.Name,
		fmt.Sprintf(`{"spec":{"podCIDR":%q,"podCIDRs":[%q]}}`, kubeSubnet(2), kubeSubnet(2)))
	w.healthy(hosts)
	for i, h := range hosts {
		if got := w.Subnet(h, "default").String(); got != kubeSubnet(i) {
			t.Errorf("%s has %s, its Node %s", h.Name, got, kubeSubnet(i))
		}
		w.Container(h, "default")
	}
	w.layFlannelNode(foreign, kubeSubnet(3), hosts)
	for _, h := range hosts {
		w.WaitPeers(h, "default", 3)
	}
	w.Linked(w.Containers)
	w.showsForeign(a, foreign)
	w.refuses(a, b)
	w.onlyKubernetes(hosts)
	whole := traffic.Watch(w.World)

	w.loseServer(hosts)
	w.breakNode(a, hosts)
	w.loseRights(hosts)
	whole()
	w.FollowsAddress(a, w.Containers[:len(hosts)])
	w.onlyKubernetes(hosts)
	for i, h := range hosts {
		if got := w.Subnet(h, "default").String(); got != kubeSubnet(i) {
			t.Errorf("%s has %s now", h.Name, got)
		}
	}
	w.showsNoToken(hosts)
	w.cleansUp(late)
}

// showsNoToken checks that neither the logs nor a bundle for a fault report contain the token of the agents or of an
// operator.
func (w *kubeWorld) showsNoToken(hosts []*lab.Host) {
	w.T.Helper()
	h := hosts[0]
	path := filepath.Join(h.Dir, "bundle.tar.gz")
	_, err := h.Leno(w.Ctx, "debug", "-duration=1s", "-interval=500ms", "-token="+kubetest.AdminToken, "-output="+path)
	w.Must(err)
	bundle, err := h.Exec(w.Ctx, "tar", "-xzOf", path)
	w.Must(err)
	if !strings.Contains(bundle, "kubernetes.kubeconfig") {
		w.T.Errorf("the bundle of %d bytes lacks the configuration", len(bundle))
	}
	texts := map[string]string{"the bundle": bundle}
	for _, h := range hosts {
		texts["the log of "+h.Name] = h.Agent().Output()
	}
	for name, text := range texts {
		if strings.Contains(text, kubetest.UserToken) || strings.Contains(text, kubetest.AdminToken) {
			w.T.Errorf("a token is in %s", name)
		}
	}
}

// showsForeign checks that a host with flannel is a peer without a fault.
func (w *kubeWorld) showsForeign(h, foreign *lab.Host) {
	w.T.Helper()
	peers, err := h.Leno(w.Ctx, "peers")
	w.Must(err)
	if !strings.Contains(peers, foreign.Name) || !strings.Contains(peers, foreign.Addrs[0].String()) {
		w.T.Errorf("leno peers:\n%s", peers)
	}
	w.Eventually("leno doctor to find nothing", func(ctx context.Context) error {
		doctor, err := h.Leno(ctx, "doctor")
		if err == nil && (!strings.Contains(doctor, "healthy") || !strings.Contains(doctor, "kubernetes answers")) {
			err = errors.New(doctor)
		}
		return err
	})
}

// refuses checks that what Kubernetes decides cannot be changed.
func (w *kubeWorld) refuses(h, other *lab.Host) {
	w.T.Helper()
	subnet := w.Subnet(other, "default").String()
	for _, args := range [][]string{
		{"lease", "revoke", "default", subnet},
		{"reservation", "add", "-node=host-z", "default", "10.5.77.0/24"},
	} {
		out, err := h.Leno(w.Ctx, args...)
		if text := fmt.Sprint(out, err); err == nil || !strings.Contains(text, "not supported by this store") {
			w.T.Errorf("leno %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	for _, request := range []string{
		"DELETE /v1/network/default/lease/" + strings.ReplaceAll(subnet, "/", "-"),
		`PUT /v1/network/default/reservation/10.5.77.0-24 {"node":"host-z"}`,
	} {
		status, body := w.change(h, request)
		if status != http.StatusNotImplemented || !strings.Contains(body, "not supported by this store") {
			w.T.Errorf("%s: %d %s", request, status, body)
		}
	}
}

// change sends a request, "METHOD path body", to the agent of a host as an operator.
func (w *kubeWorld) change(h *lab.Host, request string) (status int, body string) {
	w.T.Helper()
	part := append(strings.SplitN(request, " ", 3), "")
	r, err := http.NewRequestWithContext(w.Ctx, part[0], "http://"+api.DefaultAddress+part[1], strings.NewReader(part[2]))
	w.Must(err)
	r.Header.Set("Authorization", "Bearer "+kubetest.AdminToken)
	response, err := h.HTTP().Do(r)
	w.Must(err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	w.Must(err)
	return response.StatusCode, string(text)
}

// loseServer kills the API server for 20 s, and an agent in that time.
func (w *kubeWorld) loseServer(hosts []*lab.Host) {
	w.T.Helper()
	w.T.Log("the API server is killed")
	killed := time.Now()
	w.api.Stop()
	for _, h := range hosts {
		w.waitCheck(h, "kubernetes", "warning", "there is no answer to", "reading the leases")
		if took := w.Noticed(h, "kubernetes", killed); took > limit {
			w.T.Errorf("%s noticed the outage only after %s", h.Name, took)
		}
	}
	restarted := hosts[1]
	for _, h := range w.Hosts { // a process that is killed may lack peers of the last second
		if h != restarted {
			w.Remembered(restarted, h.Name)
		}
	}
	w.Must(restarted.KillAgent())
	w.Must(restarted.RestartAgent())
	w.WaitHealth(restarted, http.StatusTooManyRequests, "stays in use as the previous process left it", "3 peers in place")
	w.Eventually("20 s to pass", func(context.Context) error {
		if left := 20*time.Second - time.Since(killed); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	w.api.Restart()
	w.healthy(hosts)
}

// breakNode breaks the annotations of a further Node.
func (w *kubeWorld) breakNode(h *lab.Host, hosts []*lab.Host) {
	w.T.Helper()
	w.T.Log("a Node has broken annotations")
	w.api.AddNode(w.T, "host-broken", map[string]string{
		flannelPrefix + "kube-subnet-manager": "true",
		flannelPrefix + "backend-type":        "vxlan",
		flannelPrefix + "backend-data":        "garbage",
		flannelPrefix + "public-ip":           "192.0.2.99",
	}, "10.5.99.0/24")
	for _, h := range hosts {
		w.waitCheck(h, "records", "warning", "host-broken", "backend-data is not JSON")
	}
	if peers, err := h.Leno(w.Ctx, "peers"); err != nil || !strings.Contains(peers, "host-b") {
		w.T.Errorf("leno peers: %v\n%s", err, peers)
	}
	w.api.DeleteNode(w.T, "host-broken")
	w.healthy(hosts)
}

// loseRights takes the agents' rights away.
func (w *kubeWorld) loseRights(hosts []*lab.Host) {
	w.T.Helper()
	w.T.Log("the rights are taken away")
	w.api.Deny(w.T, "leno")
	for _, h := range hosts {
		w.waitCheck(h, "kubernetes", "warning", "this agent's user lacks a right for renewing the lease")
		w.waitCheck(h, "lease", "warning", "permission denied", `cannot get resource "nodes"`)
		w.WaitHealth(h, http.StatusTooManyRequests)
		if status, _, err := h.Get(w.Ctx, "/readyz"); err != nil || status != http.StatusOK {
			w.T.Errorf("%s: readyz %d without rights, %v", h.Name, status, err)
		}
	}
	w.api.Allow(w.T, "leno")
	w.healthy(hosts)
}

// cleansUp kills an agent and removes what it has left, also from its Node.
func (w *kubeWorld) cleansUp(h *lab.Host) {
	w.T.Helper()
	w.Must(h.KillAgent())
	w.Must(os.RemoveAll(h.DataDir()))
	if w.api.Annotations(w.T, h.Name)[lenoRecord] == "" {
		w.T.Fatal("there is no lease to remove")
	}
	out, err := h.Leno(w.Ctx, "cleanup", "-config-file", h.ConfigFile())
	w.Must(err)
	if left := w.api.Annotations(w.T, h.Name); len(left) > 0 {
		w.T.Errorf("annotations stay: %v\n%s", left, out)
	}
	w.Eventually("the others to give up the peer", func(ctx context.Context) error {
		var list api.LeaseList
		if err := world.GetJSON(ctx, w.Hosts[0], "/v1/network/default/leases", &list); err != nil {
			return err
		}
		for _, l := range list.Leases {
			if l.Node == h.Name {
				return errors.New("it has a lease")
			}
		}
		return nil
	})
}
