package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/internal/testkit/programs"
)

const etcdPrefix = "/coreos.com/network/"

// TestStores moves three hosts one by one from flannel to leno on the same etcd, to Consul, back to etcd, and back to
// flannel. No packet between containers is lost, and every host keeps its subnet.
func TestStores(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	w, containers := newWorld(t, lab.Options{Hosts: 3, Store: lab.StoreEtcd})
	w.flannelRecords()
	streams := w.startEchoes(containers, 10*time.Millisecond)
	nothingLost := func(step string) {
		t.Helper()
		for i, s := range streams {
			w.must(s.WaitAnswers(w.ctx, 25))
			result, err := s.Stop()
			w.must(err)
			if result.Lost() != 0 {
				t.Errorf("%s: %d of %d packets were lost, the longest gap was %s", step, result.Lost(), result.Sent, result.Gap)
			}
			streams[i], err = containers[i].SendEchoes(containers[(i+1)%3].Addrs[0], 10*time.Millisecond)
			w.must(err)
		}
	}
	inEtcd := func(h *lab.Host) string { return h.Config(w.lease(), h.Network("default", "")) }
	consul := w.startConsul()
	inConsul := func(h *lab.Host) string {
		head, _, _ := strings.Cut(inEtcd(h), "etcd {")
		return head + consul + w.lease() + h.Network("default", "")
	}

	before := w.leases()
	index := map[*lab.Host]string{}
	for _, i := range []int{2, 0, 1} {
		h := w.Hosts[i]
		index[h] = w.deviceIndex(h, "flannel.1")
		w.configure(h, inEtcd(h))
		w.handOver(h, "adopt", "device flannel.1: gets the alias leno network default", 3)
		w.handOver(h, "adopt", "nothing to hand over", 1)
		w.must(h.StartAgent(inEtcd(h)))
		w.must(h.WaitReady(w.ctx))
		if got := w.deviceIndex(h, "leno-default"); got != index[h] {
			t.Errorf("%s: the device has index %s, flannel's had %s", h.Name, got, index[h])
		}
		if i == 2 {
			w.besideFlannel(h)
		}
	}
	nothingLost("from flannel to leno")
	after := w.leases()
	if len(after) != len(w.Hosts) {
		w.t.Errorf("there are %d leases: %v", len(after), after)
	}
	for key, flannels := range before {
		lenos := after[key]
		if flannels.PublicIP != lenos.PublicIP || flannels.BackendData != lenos.BackendData || lenos.Leno.Version == 0 {
			t.Errorf("%s: flannel's lease was %+v, leno's is %+v", key, flannels, lenos)
		}
	}
	for _, h := range w.Hosts {
		w.noTrace(h, "flannel")
	}

	move := func(from, to string, config func(*lab.Host) string) {
		for name, text := range map[string]string{"etcd.hcl": inEtcd(w.Hosts[0]), "consul.hcl": inConsul(w.Hosts[0])} {
			w.must(os.WriteFile(filepath.Join(w.Dir, name), []byte(text), 0o644))
		}
		for range 2 {
			_, err := w.Hosts[1].Leno(w.ctx, "store", "copy", "-from="+filepath.Join(w.Dir, from), "-to="+filepath.Join(w.Dir, to))
			w.must(err)
		}
		for _, h := range w.Hosts {
			w.must(h.StopAgent(w.ctx))
			w.must(h.StartAgent(config(h)))
			w.must(h.WaitReady(w.ctx))
		}
		for _, h := range w.Hosts {
			w.healthy(h)
			w.keptSubnets()
		}
		nothingLost(from + " to " + to)
	}
	move("etcd.hcl", "consul.hcl", inConsul)
	move("consul.hcl", "etcd.hcl", inEtcd)

	for i, h := range w.Hosts {
		w.must(h.StopAgent(w.ctx))
		w.handOver(h, "return", "device leno-default: gets the name flannel.1", 4)
		w.handOver(h, "return", "nothing to hand over", 1)
		w.flannelStarts(i)
		_, err := h.Leno(w.ctx, "cleanup", "-keep-lease", "-config-file="+h.ConfigFile())
		w.must(err)
		if got := w.deviceIndex(h, "flannel.1"); got != index[h] {
			t.Errorf("%s: the device has index %s, it had %s", h.Name, got, index[h])
		}
		for _, peer := range others(i) {
			w.must(waitRoutes(w.ctx, w.Hosts, i, []int{peer}, "flannel.1"))
		}
		for _, other := range w.Hosts[i+1:] {
			w.healthy(other)
		}
	}
	nothingLost("from leno to flannel")
	for _, h := range w.Hosts {
		w.noTrace(h, "leno")
	}
}

// TestHandoverRefused checks that nothing changes while flanneld or an agent is running, or without a store that leno
// can share with flannel.
func TestHandoverRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	w, _ := newWorld(t, lab.Options{Hosts: 1, Store: lab.StoreEtcd})
	h := w.Hosts[0]
	config := h.Config(w.lease(), h.Network("default", ""))
	w.configure(h, config)
	state := func() (string, error) {
		return h.Exec(w.ctx, "sh", "-c", "ip -d link show type vxlan; ip route show dev flannel.1; ip -6 route show dev flannel.1")
	}
	before, err := state()
	w.must(err)
	refused := func(want string) {
		t.Helper()
		for _, verb := range []string{"adopt", "return"} {
			out, err := h.Leno(w.ctx, "flannel", verb, "-config-file="+h.ConfigFile())
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %s %v, want %q", verb, out, err, want)
			}
		}
	}
	refused("network default") // it is not in etcd yet
	w.flannelRecords()
	sleep, err := os.ReadFile("/bin/sleep")
	w.must(err)
	program := filepath.Join(w.Dir, "flanneld")
	w.must(programs.Write(program, sleep))
	flanneld, err := h.Start(program, "600")
	w.must(err)
	refused(fmt.Sprintf("flanneld is running here (pid %d): stop it first", flanneld.Pid()))
	_, err = h.Leno(w.ctx, "flannel", "adopt", "-dry-run", "-config-file="+h.ConfigFile())
	w.must(err)
	flanneld.Kill()
	w.configure(h, strings.ReplaceAll(config, "etcd {", "consul {\n} # {"))
	refused("-config-file")
	after, err := state()
	w.must(err)
	if after != before {
		t.Errorf("changed:\n%s\nbefore:\n%s", after, before)
	}
	w.must(h.StartAgent(config))
	w.must(lab.WaitFor(w.ctx, "the agent", func(ctx context.Context) error {
		_, _, err := h.Get(ctx, "/healthz")
		return err
	}))
	refused("stop the agent first")
}

func (w *world) lease() string { return "lease {\n  ttl = \"10s\"\n}\n" }

// besideFlannel checks what the only host with leno says about the others, and about a lease that flannel cannot have
// written.
func (w *world) besideFlannel(h *lab.Host) {
	w.t.Helper()
	w.healthy(h)
	for _, args := range [][]string{{"peers"}, {"doctor"}} {
		want := []string{"healthy", "2 of 2 hosts answer"}
		if args[0] == "peers" {
			want = []string{"flannel-" + w.Hosts[0].Addrs[0].String(), "flannel-" + w.Hosts[1].Addrs[0].String()}
		}
		w.must(lab.WaitFor(w.ctx, "leno "+args[0]+" beside hosts with flannel", func(ctx context.Context) error {
			out, err := h.Leno(ctx, args...)
			for _, words := range want {
				if err == nil && !strings.Contains(out, words) {
					err = fmt.Errorf("%q is not in\n%s", words, out)
				}
			}
			return err
		}))
	}
	const key = etcdPrefix + "subnets/10.5.250.0-24"
	_, err := w.etcd().Put(w.ctx, key, "garbage")
	w.must(err)
	w.must(lab.WaitFor(w.ctx, "the record to be named", func(ctx context.Context) error {
		out, err := h.Leno(ctx, "lease", "list")
		if err == nil && !strings.Contains(out, key) {
			err = errors.New(out)
		}
		return err
	}))
	_, err = w.etcd().Delete(w.ctx, key)
	w.must(err)
	w.healthy(h)
}

// configure writes the configuration of an agent that is not started yet.
func (w *world) configure(h *lab.Host, config string) {
	w.t.Helper()
	w.must(os.WriteFile(h.ConfigFile(), []byte(config), 0o644))
}

// configureFlannel writes the configuration of flannel's network.
func (w *world) configureFlannel(text string) {
	w.t.Helper()
	_, err := w.etcd().Put(w.ctx, etcdPrefix+"config", text)
	w.must(err)
}

// flannelRecords writes what flanneld keeps in etcd.
func (w *world) flannelRecords() {
	w.t.Helper()
	w.configureFlannel(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)
	for i := range w.Hosts {
		w.flannelLease(i)
	}
}

// flannelLease writes flannel's lease of a host, as flanneld does at its start.
func (w *world) flannelLease(i int) {
	w.t.Helper()
	lease, err := w.etcd().Grant(w.ctx, 24*3600)
	w.must(err)
	value := fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`,
		w.Hosts[i].Addrs[0], theirs(i).mac)
	subnet := theirs(i).subnet
	key := fmt.Sprintf("%ssubnets/%s-%d", etcdPrefix, subnet.Addr(), subnet.Bits())
	_, err = w.etcd().Put(w.ctx, key, value, clientv3.WithLease(lease.ID))
	w.must(err)
}

func (w *world) etcd() *clientv3.Client {
	w.t.Helper()
	client, err := w.Etcd.Client()
	w.must(err)
	return client
}

// record is a lease as flannel reads it, and leno's record in it.
type record struct {
	PublicIP    string
	BackendData struct {
		VNI     int
		VtepMAC string
	}
	Leno struct {
		Version int `json:"version"` // 0 for a record of flannel's
	} `json:"leno"`
}

// leases returns the leases in etcd by key.
func (w *world) leases() map[string]record {
	w.t.Helper()
	resp, err := w.etcd().Get(w.ctx, etcdPrefix+"subnets/", clientv3.WithPrefix())
	w.must(err)
	out := map[string]record{}
	for _, kv := range resp.Kvs {
		var r record
		w.must(json.Unmarshal(kv.Value, &r))
		out[string(kv.Key)] = r
	}
	return out
}

// startConsul starts a second store, and returns its block of a configuration.
func (w *world) startConsul() string {
	w.t.Helper()
	program, err := lab.FindConsul()
	w.must(err)
	const addr = "192.0.2.254" // the switch
	p, err := w.Switch.Start(program, "agent", "-dev", "-node=consul", "-bind="+addr, "-client="+addr, "-log-level=warn")
	w.must(err)
	w.must(p.WaitFor(w.ctx, "a leader", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+":8500/v1/kv/leno?keys", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := w.Switch.HTTP().Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound { // no key is there, and a leader said so
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	}))
	return fmt.Sprintf("consul {\n  address = \"%s:8500\"\n}\n", addr)
}

// deviceIndex returns the index of a host's device.
func (w *world) deviceIndex(h *lab.Host, link string) string {
	w.t.Helper()
	out, err := h.Exec(w.ctx, "ip", "-o", "link", "show", link)
	w.must(err)
	index, _, _ := strings.Cut(out, ":")
	return index
}

// handOver runs a command that the page shows, and checks what it prints.
func (w *world) handOver(h *lab.Host, verb, want string, lines int) {
	w.t.Helper()
	line := "leno flannel " + verb + " -config-dir=/etc/leno.d"
	text, err := os.ReadFile("../../website/content/docs/migrate/stores.mdx")
	w.must(err)
	if !strings.Contains(string(text), "\n"+line+"\n") {
		w.t.Errorf("the page does not say %q", line)
	}
	for _, more := range [][]string{{"-dry-run"}, nil} {
		out, err := h.Leno(w.ctx, append([]string{"flannel", verb, "-config-file=" + h.ConfigFile()}, more...)...)
		w.must(err)
		if got := strings.Count(out, "\n"); !strings.Contains(out, want) || got < lines {
			w.t.Errorf("%s %q on %s: %d lines, want %d with %q:\n%s", verb, more, h.Name, got, lines, want, out)
		}
	}
}

// flannelStarts does what flanneld does at its start on a host where it finds its device: it uses it as it is, and
// writes its lease.
func (w *world) flannelStarts(i int) {
	w.t.Helper()
	own := theirs(i)
	lines := []string{
		`ip -d link show flannel.1 | grep -q "vxlan id 1 local ` + w.Hosts[i].Addrs[0].String() + ` dev eth0 .* dstport 8472"`,
		"ip link show flannel.1 | grep -q " + own.mac,
		fmt.Sprintf("ip address show dev flannel.1 | grep -q 'inet %s/32 '", own.subnet.Addr()),
		"ip link set flannel.1 up",
	}
	for _, j := range others(i) {
		peer := theirs(j)
		lines = append(lines,
			fmt.Sprintf("ip neighbour replace %s lladdr %s dev flannel.1 nud permanent", peer.subnet.Addr(), peer.mac),
			fmt.Sprintf("bridge fdb replace %s dev flannel.1 dst %s", peer.mac, w.Hosts[j].Addrs[0]),
			fmt.Sprintf("ip route replace %s via %s dev flannel.1 onlink", peer.subnet, peer.subnet.Addr()))
	}
	w.flannelLease(i)
	_, err := w.Hosts[i].Exec(w.ctx, "sh", "-euxc", strings.Join(lines, "\n"))
	w.must(err)
}

// healthy blocks until an agent reports that all is well.
func (w *world) healthy(h *lab.Host) {
	w.t.Helper()
	w.must(lab.WaitFor(w.ctx, h.Name+" to be healthy", func(ctx context.Context) error {
		status, body, err := h.Get(ctx, "/healthz")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d %s", status, body)
		}
		return err
	}))
}

// noTrace checks that nothing in a host's kernel has the other program's marks.
func (w *world) noTrace(h *lab.Host, program string) {
	w.t.Helper()
	out, err := h.Exec(w.ctx, "sh", "-c", "ip -o -d link show type vxlan; ip route show table all; ip -6 route show table all; iptables-save; ip6tables-save")
	w.must(err)
	marks := map[string][]string{"flannel": {"flannel"}, "leno": {"leno", "LENO", "proto 108"}}
	for line := range strings.Lines(out) {
		for _, mark := range marks[program] {
			if strings.Contains(line, mark) {
				w.t.Errorf("%s: left of %s: %s", h.Name, program, line)
			}
		}
	}
}
