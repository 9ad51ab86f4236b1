// Package migrate tests the migration from flannel to leno as the documentation describes it, with
// real hosts, a real Consul and real packets.
package migrate

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

var binary string

func TestMain(m *testing.M) {
	os.Exit(lab.RunWithLeno(&binary, m.Run))
}

const operator = "0f8c2b76-1d5e-4c55-9d0f-0a4c3d0e6b11" // the token with all rights

// acl allows everything, except to tokens whose policy forbids it.
const acl = `{"acl":{"enabled":true,"default_policy":"allow","tokens":{"initial_management":"` + operator + `"}}}`

type world struct {
	*lab.Lab
	t   *testing.T
	ctx context.Context
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// newWorld lays out hosts, a server of the store, and flannel's state in the kernel of each host, with
// a container behind it.
func newWorld(t *testing.T, o lab.Options) (*world, []*lab.Container) {
	t.Helper()
	w := newLab(t, o)
	containers, err := layFlannel(w.ctx, w.Hosts)
	w.must(err)
	return w, containers
}

// newLab lays out hosts and a server of the store.
func newLab(t *testing.T, o lab.Options) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	t.Cleanup(cancel)
	o.Leno = binary
	l, err := lab.New(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, h := range l.Hosts {
			if p := h.Agent(); p != nil && t.Failed() {
				lines := strings.Split(strings.TrimSpace(p.Output()), "\n")
				t.Logf("agent of %s:\n%s", h.Name, strings.Join(lines[max(0, len(lines)-15):], "\n"))
			}
		}
		if err := l.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	return &world{Lab: l, t: t, ctx: ctx}
}

// TestMigration moves three hosts from flannel to leno one by one. No packet between containers is
// lost, and every host keeps its subnet.
func TestMigration(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	w, containers := newWorld(t, lab.Options{Hosts: 3, ConsulConfig: acl})
	ctx := w.ctx
	streams := w.startEchoes(containers, 20*time.Millisecond)

	// leno next to flannel: every host has its lease and its device, and flannel's routes still
	// carry everything.
	w.begin()
	w.refusals()
	w.takeOver()
	for i, h := range w.Hosts {
		w.inTheWay(h)
		w.must(waitRoutes(ctx, w.Hosts, i, others(i), "flannel.1"))
	}

	// Move the outgoing packets to leno, host by host.
	for _, i := range []int{2, 0, 1} {
		began := time.Now()
		w.stepBack(w.Hosts[i])
		w.must(waitRoutes(ctx, w.Hosts, i, others(i), "leno-default flannel.1"))
		t.Logf("%s sends over leno %s after flannel's routes stepped back", w.Hosts[i].Name, time.Since(began).Round(time.Millisecond))
		w.must(w.Hosts[i].WaitReady(ctx))
	}
	w.keptSubnets()

	// Remove flannel.
	for _, h := range w.Hosts {
		w.shell(h, "ip link del flannel.1")
	}
	for _, s := range streams {
		w.must(s.WaitAnswers(ctx, 25))
		result, err := s.Stop()
		w.must(err)
		if result.Lost() != 0 {
			t.Errorf("%d of %d packets were lost, the longest gap was %s", result.Lost(), result.Sent, result.Gap)
		}
	}
	for i := range w.Hosts {
		w.must(waitRoutes(ctx, w.Hosts, i, others(i), "leno-default"))
		w.healthy(w.Hosts[i])
	}
}

// startEchoes starts pings from each of three containers to the next one, once that has answered.
func (w *world) startEchoes(containers []*lab.Container, every time.Duration) (streams []*lab.Echoes) {
	w.t.Helper()
	for i, from := range containers {
		to := containers[(i+1)%len(containers)].Addrs[0]
		w.answers(from, to)
		s, err := from.StartEchoes(to, every)
		w.must(err)
		w.must(s.WaitAnswers(w.ctx, 5))
		streams = append(streams, s)
	}
	return streams
}

// answers blocks until a container has an answer from an address. Until then, neighbour discovery may lose pings.
func (w *world) answers(from *lab.Container, to netip.Addr) {
	w.t.Helper()
	w.must(lab.WaitFor(w.ctx, "a first answer to "+from.Name, func(ctx context.Context) error {
		r, err := from.Ping(ctx, to, lab.PingOptions{})
		if err == nil && r.Lost() > 0 {
			err = fmt.Errorf("none from %s", to)
		}
		return err
	}))
}

// TestRollback moves hosts back to flannel after they have moved to leno.
func TestRollback(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	w, containers := newWorld(t, lab.Options{Hosts: 2, ConsulConfig: acl})
	ctx := w.ctx
	w.begin()
	w.takeOver()
	for _, h := range w.Hosts {
		w.stepBack(h)
		w.must(h.WaitReady(ctx))
	}
	w.must(waitRoutes(ctx, w.Hosts, 0, []int{1}, "leno-default flannel.1"))
	w.must(waitRoutes(ctx, w.Hosts, 1, []int{0}, "leno-default flannel.1"))
	for _, h := range w.Hosts {
		w.must(h.StopAgent(ctx))
		_, err := h.Leno(ctx, "cleanup", "-config-file="+h.ConfigFile())
		w.must(err)
		// The same holds while one host has moved back and the other has not.
		w.must(waitRoutes(ctx, w.Hosts, 0, []int{1}, "flannel.1"))
		w.must(waitRoutes(ctx, w.Hosts, 1, []int{0}, "flannel.1"))
		w.answers(containers[0], containers[1].Addrs[0])
		result, err := containers[0].Ping(ctx, containers[1].Addrs[0], lab.PingOptions{Count: 5, Timeout: 30 * time.Second})
		if err != nil || result.Lost() != 0 {
			t.Errorf("%d of %d packets are lost over flannel: %v", result.Lost(), result.Sent, err)
		}
	}
}

// TestStepBack checks that the script works for both families and leaves routes that are not
// flannel's.
func TestStepBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	w, _ := newWorld(t, lab.Options{Hosts: 1, ConsulConfig: acl})
	h := w.Hosts[0]
	setUp := `
ip link add flannel-v6.1 type bridge
ip link set flannel-v6.1 up
ip route add 10.5.80.0/24 via 192.0.2.77 dev eth0 metric 7
ip route add 10.5.81.0/24 via 10.5.81.0 dev flannel.1 onlink proto 108
ip route add unreachable 10.5.0.0/16 metric 16777216
ip route add 10.6.80.0/24 via 192.0.2.77 dev eth0
ip -6 route add fd00:5:0:50::/64 via fd00:5:0:50:: dev flannel-v6.1 onlink
ip -6 route add fd00:6::/64 via fd00:5:0:50:: dev flannel-v6.1 onlink`
	_, err := h.Exec(w.ctx, "sh", "-euc", setUp)
	w.must(err)
	for range 2 {
		w.shell(h, "sh step-back.sh 10.5.0.0/16 fd00:5::/48\n#\nsh step-back.sh 10.5.0.0/16")
	}
	for command, want := range map[string]string{
		"ip route show root 10.5.0.0/16": "unreachable 10.5.0.0/16 metric 16777216 | 10.5.52.0/24 dev br0 proto kernel scope link src 10.5.52.1 | " +
			"10.5.80.0/24 via 192.0.2.77 dev eth0 metric 10000 | 10.5.81.0/24 via 10.5.81.0 dev flannel.1 proto 108 onlink",
		"ip route show root 10.6.0.0/16":    "10.6.80.0/24 via 192.0.2.77 dev eth0",
		"ip -6 route show root fd00:5::/48": "fd00:5:0:50::/64 via fd00:5:0:50:: dev flannel-v6.1 metric 10000 onlink pref medium",
		"ip -6 route show root fd00:6::/48": "fd00:6::/64 via fd00:5:0:50:: dev flannel-v6.1 metric 1024 onlink pref medium",
	} {
		out, err := h.Exec(w.ctx, strings.Fields(command)...)
		w.must(err)
		var got []string
		for line := range strings.Lines(out) {
			got = append(got, strings.Join(strings.Fields(line), " "))
		}
		if got := strings.Join(got, " | "); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", command, got, want)
		}
	}
	if out, err := h.Exec(w.ctx, "sh", filepath.Join(w.Dir, "step-back.sh")); err == nil || !strings.Contains(err.Error(), "usage:") {
		t.Errorf("without a network: %s %v", out, err)
	}
}

func others(of int) []int {
	return slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == of })
}

// begin starts the agents, which wait for the network.
func (w *world) begin() {
	w.t.Helper()
	for _, h := range w.Hosts {
		w.must(h.StartAgent(h.Config("lease {\n  ttl = \"10s\"\n}", h.Network("default", ""))))
	}
	for _, h := range w.Hosts {
		w.must(lab.WaitFor(w.ctx, h.Name+" to wait for its network", func(ctx context.Context) error {
			if _, body, err := h.Get(ctx, "/healthz"); err != nil || !strings.Contains(body, "waiting for the network to be defined") {
				return fmt.Errorf("%s %w", body, err)
			}
			return nil
		}))
	}
}

// page is the documentation page whose steps the tests follow.
const page = "../../website/content/docs/migrate/flannel.mdx"

// shell runs a script on a host, with the programs and files it needs. The script's last line must
// be on the page.
func (w *world) shell(h *lab.Host, script string) string {
	w.t.Helper()
	text, err := os.ReadFile(page)
	w.must(err)
	line := script[strings.LastIndexByte(script, '\n')+1:]
	if !strings.Contains(string(text), "\n"+line+"\n") {
		w.t.Fatalf("%s does not say %q", page, line)
	}
	bin := filepath.Join(w.Dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		w.t.Fatal(err)
	}
	program, err := lab.FindConsul()
	w.must(err)
	stepBack, err := filepath.Abs("../../examples/flannel/step-back.sh")
	w.must(err)
	for from, to := range map[string]string{program: "bin/consul", binary: "bin/leno", stepBack: "step-back.sh"} {
		if err := os.Symlink(from, filepath.Join(w.Dir, to)); err != nil && !os.IsExist(err) {
			w.t.Fatal(err)
		}
	}
	out, err := h.Exec(w.ctx, "env", "PATH="+bin+":"+os.Getenv("PATH"), "CONSUL_HTTP_ADDR="+w.Consul.Address(), "CONSUL_HTTP_TOKEN=",
		"sh", "-euc", "cd "+w.Dir+"\n"+script)
	w.must(err)
	return out
}

// stepBack lowers the priority of flannel's routes, twice, to show that repeating it does no harm.
func (w *world) stepBack(h *lab.Host) {
	w.t.Helper()
	for range 2 {
		w.shell(h, "sh step-back.sh 10.5.0.0/16")
	}
}

// inTheWay blocks until a host reports that flannel's routes are in the way of leno's.
func (w *world) inTheWay(h *lab.Host) {
	w.t.Helper()
	w.must(lab.WaitFor(w.ctx, h.Name+" to find flannel's routes", func(ctx context.Context) error {
		_, body, err := h.Get(ctx, "/healthz")
		for i := range w.Hosts {
			want := fmt.Sprintf("put route %s: file exists: a route to it that is not leno's is there", theirs(i).subnet)
			if w.Hosts[i] != h && !strings.Contains(body, want) {
				return fmt.Errorf("%q is not in %s: %w", want, body, err)
			}
		}
		return err
	}))
}

// export returns what etcdctl prints for flannel's keys.
func (w *world) export(file string, change func(records map[string]string)) string {
	w.t.Helper()
	records := map[string]string{"config": `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`}
	for i, h := range w.Hosts {
		subnet := theirs(i).subnet
		records[fmt.Sprintf("subnets/%s-%d", subnet.Addr(), subnet.Bits())] = fmt.Sprintf(
			`{"PublicIP":%q,"PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`, h.Addrs[0], theirs(i).mac)
	}
	if change != nil {
		change(records)
	}
	type pair struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	var kvs []pair
	for key, value := range records {
		kvs = append(kvs, pair{base64.StdEncoding.EncodeToString([]byte("/coreos.com/network/" + key)), base64.StdEncoding.EncodeToString([]byte(value))})
	}
	text, err := json.Marshal(map[string]any{"header": map[string]int{"revision": 9}, "kvs": kvs, "count": len(kvs)})
	w.must(err)
	path := filepath.Join(w.Dir, file)
	w.must(os.WriteFile(path, text, 0o644))
	return path
}

// catalog registers every host in Consul's catalogue, as their Consul agents would, and returns the
// file with the output of `consul catalog nodes`.
func (w *world) catalog() string {
	w.t.Helper()
	for _, h := range w.Hosts {
		_, err := w.Consul.Client().Catalog().Register(&consul.CatalogRegistration{Node: h.Name, Address: h.Addrs[0].String()}, nil)
		w.must(err)
	}
	nodes, err := w.Consul.CLI(w.ctx, "catalog", "nodes")
	w.must(err)
	path := filepath.Join(w.Dir, "nodes.txt")
	w.must(os.WriteFile(path, []byte(nodes), 0o644))
	return path
}

// refusals checks that records that cannot be imported are named and change nothing.
func (w *world) refusals() {
	w.t.Helper()
	nodes := w.catalog()
	bad := w.export("bad.json", func(records map[string]string) {
		records["subnets/10.5.99.0-24"] = `{"PublicIP":"198.51.100.7"}`
		records["subnets/10.6.1.0-24"] = `{"PublicIP":"192.0.2.11"}`
		records["subnets/10.5.98.0-24"] = "{"
	})
	policy, _, err := w.Consul.Client().ACL().PolicyCreate(&consul.ACLPolicy{Name: "no-networks",
		Rules: `key_prefix "leno/" { policy = "read" } key_prefix "leno/reservations/" { policy = "write" }`}, &consul.WriteOptions{Token: operator})
	w.must(err)
	token, _, err := w.Consul.Client().ACL().TokenCreate(&consul.ACLToken{Policies: []*consul.ACLTokenPolicyLink{{ID: policy.ID}}}, &consul.WriteOptions{Token: operator})
	w.must(err)
	// A policy does not restrict what it does not name, because the default is to allow.
	_, _, err = w.Consul.Client().ACL().PolicyUpdate(&consul.ACLPolicy{ID: policy.ID, Name: policy.Name,
		Rules: `key_prefix "leno/networks/" { policy = "deny" }`}, &consul.WriteOptions{Token: operator})
	w.must(err)
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"bad records", []string{bad, "-nodes=" + nodes}, []string{"3 records", "/subnets/10.5.98.0-24: the value is not a lease",
			"/subnets/10.5.99.0-24: no host is known by 198.51.100.7", "/subnets/10.6.1.0-24: subnet 10.6.1.0/24: invalid: outside"}},
		{"no names", []string{w.export("good.json", nil)}, []string{"3 records", "-node=192.0.2.11=NAME"}},
		{"no right to define networks", []string{w.export("good.json", nil), "-nodes=" + nodes, "-token=" + token.SecretID}, []string{"ermission denied"}},
	} {
		out, err := w.Hosts[0].Leno(w.ctx, append([]string{"network", "import"}, tt.args...)...)
		if err == nil {
			w.t.Errorf("%s: imported:\n%s", tt.name, out)
			continue
		}
		for _, words := range tt.want {
			if !strings.Contains(err.Error(), words) {
				w.t.Errorf("%s: %v, want %q", tt.name, err, words)
			}
		}
		for _, tree := range []string{"leno/networks/default", "leno/reservations/"} {
			keys, _, err := w.Consul.Client().KV().Keys(tree, "", nil)
			w.must(err)
			if len(keys) != 0 {
				w.t.Errorf("%s leaves %v", tt.name, keys)
			}
		}
	}
}

// takeOver imports flannel's subnets, twice.
func (w *world) takeOver() {
	w.t.Helper()
	w.catalog()
	w.export("flannel.json", nil)
	const line = "consul catalog nodes | leno network import flannel.json -nodes=-"
	w.shell(w.Hosts[0], line+" -dry-run")
	for i, want := range []string{"create", "none"} {
		out := w.shell(w.Hosts[0], "export LENO_FORMAT=json\n"+line)
		var done struct {
			Action       string
			Reservations []struct{ Subnet, Node, Action string }
		}
		w.must(json.Unmarshal([]byte(out), &done))
		if done.Action != want || len(done.Reservations) != len(w.Hosts) {
			w.t.Fatalf("import %d: %s", i+1, out)
		}
		for j, r := range done.Reservations {
			if r.Action != want || r.Node != w.Hosts[j].Name || r.Subnet != theirs(j).subnet.String() {
				w.t.Errorf("import %d: %+v", i+1, r)
			}
		}
	}
}

// keptSubnets checks that every host has the same subnet in leno as in flannel.
func (w *world) keptSubnets() {
	w.t.Helper()
	out, err := w.Hosts[1].Leno(w.ctx, "lease", "list", "-format=json")
	w.must(err)
	var list api.LeaseList
	w.must(json.Unmarshal([]byte(out), &list))
	got := map[string]netip.Prefix{}
	for _, lease := range list.Leases {
		got[lease.Node] = lease.Subnet
	}
	for i, h := range w.Hosts {
		if got[h.Name] != theirs(i).subnet {
			w.t.Errorf("%s has %s, and had %s", h.Name, got[h.Name], theirs(i).subnet)
		}
	}
}
