package cleanup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
	"github.com/lenonet/leno/internal/testkit/seed"
)

// strangers sets up a host that other programs use: their devices, some with names like leno's,
// addresses and routes inside the network's pools, and rules in every kind of firewall. Devices that are up get no address
// from the kernel, which would give it to them at any time.
const strangers = `
ip link add docker0 type bridge
for n in 5 6 7 8; do ip addr add 10.$n.34.1/24 dev docker0; done
ip link set docker0 addrgenmode none up
ip neigh add 10.5.34.9 lladdr 02:00:00:00:00:09 nud permanent dev docker0
ip neigh add 192.0.2.200 lladdr 02:00:00:00:00:c8 nud permanent dev eth0
ip link add leno-foo type bridge
ip link add leno-bar type veth peer name theirs0
ip link add leno-vx type vxlan id 99 dstport 9999 group 239.1.1.1 dev eth0
bridge fdb append 02:00:00:00:00:01 dev leno-vx dst 192.0.2.201
ip link set leno-vx addrgenmode none up
ip tuntap add leno-tap mode tap
ip link add theirs type vxlan id 98 dstport 9998 local 192.0.2.11 dev eth0 nolearning
ip tuntap add vpn0 mode tun
for n in 5 6 7 8; do
	ip route add 10.$n.99.0/24 via 192.0.2.1 proto static
	ip route add blackhole 10.$n.98.0/24 proto 99
	ip -6 route add fd00:$n:0:99::/64 dev eth0 proto static
done
ip route add unreachable 10.0.0.0/8 proto static
ip route add 10.5.97.0/24 dev eth0 table 100
ip rule add from 10.5.0.0/16 lookup 100
nft -f - <<'X'
table inet lenovo { chain c { type filter hook forward priority 5; ip saddr 10.5.0.0/16 accept comment "leno default"; }; }
X
for ipt in iptables-legacy ip6tables-legacy iptables-nft ip6tables-nft; do
	$ipt -t nat -N THEIRS
	$ipt -t nat -A THEIRS -p tcp --dport 80 -m comment --comment "leno default" -j RETURN
	$ipt -t nat -A POSTROUTING -j THEIRS
	$ipt -N NOT-LENO-
	$ipt -A FORWARD -i docker0 -j NOT-LENO-
done`

// dumpsOf returns the state of a host that leno could change, one text per subject. ip_forward is
// not included, because it stays on where leno enabled it: other programs may rely on it by then.
func (w *testWorld) dumpsOf(h *lab.Host) map[string]string {
	w.T.Helper()
	out := map[string]string{}
	for name, script := range map[string]string{
		"links":      "ip -details -oneline link",
		"addresses":  "ip -oneline addr",
		"routes":     "ip -4 route show table all; ip -6 route show table all",
		"rules":      "ip -4 rule; ip -6 rule",
		"neighbours": "ip neigh show nud permanent",
		"fdb":        "bridge fdb show",
		"iptables":   "for ipt in iptables-legacy ip6tables-legacy iptables-nft ip6tables-nft; do echo $ipt; $ipt-save; done",
		"nft":        "nft list ruleset",
		"files":      "cd " + h.Dir + "; find . -not -name '*.hcl' -not -name consul -not -path './consul/*' | sort",
	} {
		text, err := h.Exec(w.Ctx, "sh", "-ec", script)
		w.Must(err)
		out[name] = changing.ReplaceAllString(text, "")
	}
	return out
}

// dumps returns dumpsOf plus the hosts' data in Consul.
func (w *testWorld) dumps(h *lab.Host) map[string]string {
	w.T.Helper()
	out := w.dumpsOf(h)
	out["consul"] = w.stored()
	return out
}

// changing matches what differs from one dump to the next: counters, timers, and carrier states,
// which the kernel updates a moment later.
var changing = regexp.MustCompile(`(?m)^# (Generated|Completed).*\n|\[\d+:\d+\]|counter packets \d+ bytes \d+|(preferred|valid)_lft \S+|gc_timer +\S+|hello_timer +\S+|topology_change_timer +\S+|tcn_timer +\S+|NO-CARRIER,?|state (UP|DOWN|UNKNOWN)| linkdown`)

// stored returns what hosts have stored in Consul, except the change entries, which every operation
// writes.
func (w *testWorld) stored() string {
	w.T.Helper()
	client := w.Consul.Client()
	var out []string
	pairs, _, err := client.KV().List("leno/", nil)
	w.Must(err)
	for _, p := range pairs {
		if !strings.HasPrefix(p.Key, "leno/changes/") {
			out = append(out, fmt.Sprintf("%s %s %s", p.Key, p.Value, p.Session))
		}
	}
	sessions, _, err := client.Session().List(nil)
	w.Must(err)
	for _, s := range sessions {
		out = append(out, "session "+s.ID+" "+s.Name)
	}
	services, err := client.Agent().Services()
	w.Must(err)
	for id := range services {
		out = append(out, "service "+id)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// same compares dumps by subject. more holds the lines expected to be new in "files".
func (w *testWorld) same(what string, before, after map[string]string, more ...string) {
	w.T.Helper()
	for name := range before {
		want := strings.Split(strings.TrimSpace(before[name]), "\n")
		if name == "files" {
			want = append(want, more...)
			slices.Sort(want)
		}
		if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(after[name]), "\n")); diff != "" {
			w.T.Errorf("%s: %s before and after (-want +got):\n%s", what, name, diff)
		}
	}
}

// everyBackend holds a network with each backend; n is part of its pools.
var everyBackend = []struct {
	name, backend string
	n             int
}{{"default", "vxlan", 5}, {"routed", "host-gw", 6}, {"tunnel", "udp", 7}, {"leased", "alloc", 8}, {"sealed", "wireguard", 9}}

// longLease makes sessions last until leno ends them: one that lapsed between two dumps would show as a difference.
const longLease = "lease {\n  ttl = \"10m\"\n}"

// cleanWorld lays out two hosts. The second one takes part in a network with each backend. The
// first is full of strangers and keeps one subnet in each network. text is the configuration with
// which the first host joins.
func cleanWorld(t *testing.T) (w *testWorld, a *lab.Host, text string) {
	t.Helper()
	w = newWorld(t, lab.Options{Hosts: 2})
	a, b := w.Hosts[0], w.Hosts[1]
	config := func(h *lab.Host) string {
		blocks := []string{longLease}
		for _, n := range everyBackend {
			pools := strings.NewReplacer("10.5.", fmt.Sprintf("10.%d.", n.n), "fd00:5:", fmt.Sprintf("fd00:%d:", n.n))
			blocks = append(blocks, h.Network(n.name, pools.Replace(world.Plan(n.backend))+"\n  ip_masq = true"))
		}
		return h.Config(blocks...)
	}
	for _, n := range everyBackend { // so that it avoids the first host's
		w.Must(os.WriteFile(b.SubnetFile(n.name), fmt.Appendf(nil, "LENO_SUBNET=10.%d.77.1/24\n", n.n), 0o644))
	}
	w.Must(b.StartAgent(config(b)))
	w.Must(b.WaitReady(w.Ctx))
	for _, n := range everyBackend {
		_, err := b.Leno(w.Ctx, "reservation", "add", "-node="+a.Name, n.name, fmt.Sprintf("10.%d.34.0/24", n.n))
		w.Must(err)
	}
	_, err := a.Exec(w.Ctx, "sh", "-ec", strangers)
	w.Must(err)
	w.registered(b) // registering later would show as a difference
	return w, a, config(a)
}

// registered blocks until the host's agent is registered as a service in Consul.
func (w *testWorld) registered(h *lab.Host) {
	w.T.Helper()
	w.Eventually("the service of "+h.Name, func(context.Context) error {
		if !strings.Contains(w.stored(), "service leno-"+h.Name) {
			return errors.New("it is not there")
		}
		return nil
	})
}

// TestCleanup compares the state of a host before leno ran on it for the first time with the state
// after, for every way in which leno can end.
func TestCleanup(t *testing.T) {
	w, a, text := cleanWorld(t)
	before := w.dumps(a)
	running := func(text string) {
		t.Helper()
		w.Must(a.StartAgent(text))
		w.Must(a.WaitReady(w.Ctx))
		for _, n := range everyBackend {
			w.WaitPeers(a, n.name, 1)
			if got, want := w.Subnet(a, n.name).String(), fmt.Sprintf("10.%d.34.0/24", n.n); got != want {
				t.Fatalf("%s has %s of network %s", a.Name, got, n.name)
			}
		}
		w.Remembered(a, "host-b")
		w.registered(a)
	}
	config := "-config-file=" + a.ConfigFile()

	running(text)
	if out, code := w.Cleanup(a, "", config); code != 1 || !strings.Contains(out, "stop it first") {
		t.Errorf("with an agent: %d, %s", code, out)
	}
	if out, code := w.Cleanup(a, "", "-data-dir=/nowhere"); code != 1 || !strings.Contains(out, a.DataDir()) {
		t.Errorf("with an agent of another directory: %d, %s", code, out)
	}
	if out, code := w.Cleanup(a, "", config, "-network=other"); code != 0 || !strings.HasPrefix(out, "Nothing found.") {
		t.Errorf("a network in which the agent is not: %d, %s", code, out)
	}
	if out, code := w.Cleanup(a, "", config, "-network=default"); code != 1 || !strings.Contains(out, "leno lease release default") {
		t.Errorf("with an agent in the network: %d, %s", code, out)
	}
	w.Must(a.KillAgent())
	stands := w.dumps(a)
	listed, code := w.Cleanup(a, "", config, "-dry-run", "-format=json")
	if code != 0 {
		t.Errorf("dry run: %d, %s", code, listed)
	}
	w.same("a dry run", stands, w.dumps(a))
	out, code := w.Cleanup(a, "", config, "-format=json")
	if code != 0 {
		t.Errorf("%d: %s", code, out)
	}
	w.same("killed", before, w.dumps(a))
	if diff := cmp.Diff(strings.Replace(listed, `"dry_run": true`, `"dry_run": false`, 1), out); diff != "" {
		t.Errorf("the dry run listed something else (-listed +removed):\n%s", diff)
	}
	for _, name := range []string{"leno-foo", "leno-bar", "leno-vx", "leno-tap"} {
		if !strings.Contains(out, `"name": "`+name+`"`) {
			t.Errorf("%s is not named: %s", name, out)
		}
	}
	out, code = w.Cleanup(a, "", config)
	if code != 0 || !strings.HasPrefix(out, "Nothing found.\nNot removed, not created by leno:\n") {
		t.Errorf("the second time: %d, %s", code, out)
	}
	w.same("a second time", before, w.dumps(a))

	// What follows is done by an agent, which keeps its identity.
	identity := []string{"./data", "./data/config-files", "./data/lock", "./data/node-id"}
	running(strings.Replace(text, "lease {", "lease {\n  release_on_stop = true", 1))
	w.Must(a.StopAgent(w.Ctx))
	w.same("release_on_stop", before, w.dumps(a), identity...)

	running(text)
	for _, n := range everyBackend {
		_, err := a.Leno(w.Ctx, "lease", "release", n.name)
		w.Must(err)
	}
	w.Must(a.StopAgent(w.Ctx))
	w.same("released", before, w.dumps(a), identity...)

	running(text)
	for _, n := range everyBackend {
		_, err := a.Leno(w.Ctx, "network", "delete", "-force", n.name)
		w.Must(err)
	}
	w.Eventually("the host to have left", func(context.Context) error {
		if state, err := filepath.Glob(a.DataDir() + "/*.json"); err != nil || len(state) > 0 {
			return fmt.Errorf("%q, %v", state, err)
		}
		return nil
	})
	w.Must(a.StopAgent(w.Ctx))
	after := w.dumps(a)
	before["consul"], after["consul"] = "", "" // the networks are removed from Consul, for all hosts
	remembered := append(identity, "./data/deleted")
	for _, n := range everyBackend {
		remembered = append(remembered, "./data/deleted/"+n.name+".json")
	}
	w.same("networks deleted", before, after, remembered...)
}

// TestCleanupAfterKill kills agents at random moments while they start or leave, and checks that
// cleanup removes everything. Another seed chooses other moments.
func TestCleanupAfterKill(t *testing.T) {
	w, a, text := cleanWorld(t)
	text = strings.Replace(text, "lease {", "lease {\n  release_on_stop = true", 1)
	before := w.dumps(a)
	random := seed.Rand(t)
	moments := func(limit time.Duration) time.Duration { return time.Duration(random.Int64N(int64(limit))) }
	for round := range 6 {
		w.Must(a.StartAgent(text))
		moment := moments(time.Second) // after the start, which takes about as long
		if round%2 == 1 {
			w.Must(a.WaitReady(w.Ctx))
			w.Must(a.Agent().Signal(syscall.SIGTERM))
			moment = moments(100 * time.Millisecond) // after leaving began
		}
		select {
		case <-time.After(moment): // whatever the agent is doing
		case <-a.Agent().Done():
		}
		w.Must(a.KillAgent())
		out, code := w.Cleanup(a, "", "-config-file="+a.ConfigFile())
		if code != 0 {
			t.Errorf("%d: %s", code, out)
		}
		what := fmt.Sprintf("round %d, killed after %s", round, moment)
		// What the killed agent sent to Consul may arrive after cleanup has looked. The next one removes it.
		w.Eventually(what+": nothing to be left in Consul", func(context.Context) error {
			diff := cmp.Diff(before["consul"], w.stored())
			if diff == "" {
				return nil
			}
			if again, code := w.Cleanup(a, "", "-config-file="+a.ConfigFile()); code != 0 {
				t.Errorf("%d: %s", code, again)
			}
			return errors.New(diff)
		})
		after := w.dumpsOf(a)
		after["consul"] = before["consul"]
		w.same(what, before, after)
		if t.Failed() {
			t.Fatalf("it removed\n%s", out)
		}
	}
}

// TestCleanupOfRemains removes what no process remembers any more: state that cannot be read, a
// device under another name, objects that an earlier version created, and a lease for which Consul
// could not be reached the first time.
func TestCleanupOfRemains(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 1})
	a := w.Hosts[0]
	blue := strings.NewReplacer("10.5.", "10.11.", "fd00:5:", "fd00:11:").Replace(world.Plan("udp"))
	// The strangers have addresses and routes in other subnets of the pool.
	apart := strings.Replace(world.Plan("vxlan"), `ipv4 { prefix = "10.5.0.0/16" }`, "ipv4 {\n prefix = \"10.5.0.0/16\"\n min = \"10.5.40.0\"\n max = \"10.5.90.0\"\n}", 1)
	text := a.Config(longLease, a.Network("default", apart+"\n  ip_masq = true"), a.Network("blue", blue+"\n  ip_masq = true"))
	_, err := a.Exec(w.Ctx, "sh", "-ec", strangers)
	w.Must(err)
	for _, n := range []string{"default", "blue"} { // what outlives all hosts
		w.Must(os.WriteFile(a.Dir+"/"+n+".hcl", []byte(a.Network(n, map[string]string{"default": apart, "blue": blue}[n])), 0o644))
	}
	w.Must(a.StartAgent(a.Config(longLease)))
	w.Eventually("the networks in Consul", func(ctx context.Context) error {
		for _, n := range []string{"default", "blue"} {
			if _, err := a.Leno(ctx, "network", "apply", a.Dir+"/"+n+".hcl"); err != nil {
				return err
			}
		}
		return nil
	})
	w.Must(a.StopAgent(w.Ctx))
	config := "-config-file=" + a.ConfigFile()
	if out, code := w.Cleanup(a, "", config); code != 0 {
		t.Fatal(code, out)
	}
	before := w.dumps(a)

	w.Must(a.StartAgent(text))
	w.Must(a.WaitReady(w.Ctx))
	w.Must(a.KillAgent())
	// What the killed agent sent to Consul may arrive later, so of Consul only the keys of leases and networks count, which
	// were there before the agent was ready.
	dumps := func() map[string]string {
		all := w.dumps(a)
		keys := regexp.MustCompile(`(?m)^leno/\S+`).FindAllString(all["consul"], -1)
		all["consul"] = strings.Join(keys, "\n") + "\n"
		return all
	}
	both := dumps()
	if out, code := w.Cleanup(a, "", config, "-network=blue"); code != 0 || strings.Contains(out, "leno-default") {
		t.Errorf("one of two networks: %d: %s", code, out)
	}
	for subject, lines := range dumps() {
		for line := range strings.Lines(lines) {
			if strings.Contains(line, "10.11.") || strings.Contains(line, "fd00:11:") || strings.Contains(line, "leno-blue") || strings.Contains(line, "leno blue") {
				if subject != "consul" || !strings.HasPrefix(line, "leno/networks/") {
					t.Errorf("of one network that went, %s has %s", subject, line)
				}
			}
			if !strings.Contains(both[subject], line) {
				t.Errorf("when one network went, %s got %s", subject, line)
			}
		}
		for line := range strings.Lines(both[subject]) {
			if (strings.Contains(line, "leno default") || strings.HasPrefix(line, "leno/leases/default/")) && !strings.Contains(lines, line) {
				t.Errorf("with another network, %s lost %s", subject, line)
			}
		}
	}

	w.Must(w.Consul.Stop(w.Ctx))
	_, err = a.Exec(w.Ctx, "sh", "-ec", `
		echo '{"version":1,"net' > `+a.DataDir()+`/default.json
		: > `+a.DataDir()+`/.default.json.4711
		ip link set leno-default down
		ip link set leno-default name eth7
		ip link set eth7 up
		ip tuntap add leno-old mode tun
		ip link set leno-old up
		ip addr add 10.9.1.0/32 dev leno-old
		ip route add 10.9.2.0/24 dev leno-old proto 108
		ip route add unreachable 10.9.0.0/16 metric 16777216 proto 108
		for ipt in iptables-legacy ip6tables-nft; do
			$ipt -t nat -N LENO-OLD
			$ipt -t nat -A LENO-OLD -j RETURN
			$ipt -t nat -I POSTROUTING -j LENO-OLD
		done`)
	w.Must(err)
	out, code := w.Cleanup(a, `
		mkdir /run/leno
		echo LENO_SUBNET=10.9.1.1/24 > /run/leno/old.env
		echo FLANNEL_SUBNET=10.9.1.1/24 > /run/leno/other.env
		trap 'ls /run/leno' EXIT`, config)
	if code != 1 || !strings.Contains(out, "could not be searched for leases") || !strings.HasSuffix(strings.Split(out, "\n\n")[0], "other.env") {
		t.Errorf("without Consul: %d: %s", code, out)
	}
	consul := before["consul"]
	after := w.dumpsOf(a)
	delete(before, "consul")
	w.same("without Consul", before, after)
	w.Must(w.Consul.Start(w.Ctx))
	if out, code = w.Cleanup(a, "", config); code != 0 || !strings.Contains(out, "lease 10.5.") {
		t.Errorf("with Consul again: %d: %s", code, out)
	}
	before["consul"] = consul
	w.same("with Consul again", before, w.dumps(a))

	w.Must(a.RestartAgent())
	w.Must(a.WaitReady(w.Ctx))
	w.registered(a)
	w.Must(a.KillAgent())
	w.Must(os.RemoveAll(a.DataDir()))
	if out, code = w.Cleanup(a, "", config); code != 0 {
		t.Errorf("without a state directory: %d: %s", code, out)
	}
	w.same("without a state directory", before, w.dumps(a))

	w.Must(a.RestartAgent())
	w.Must(a.WaitReady(w.Ctx))
	subnet := w.Subnet(a, "default")
	w.Must(a.StopAgent(w.Ctx))
	before["consul"] = w.stored()
	if out, code = w.Cleanup(a, "", config, "-keep-lease"); code != 0 {
		t.Errorf("keeping the lease: %d: %s", code, out)
	}
	w.same("keeping the lease", before, w.dumps(a), "./data", "./data/node-id")
	w.Must(a.RestartAgent())
	w.Must(a.WaitReady(w.Ctx))
	if got := w.Subnet(a, "default"); got != subnet {
		t.Errorf("back with %s, and had %s", got, subnet)
	}
	if out, err := a.Exec(w.Ctx, "unshare", "--user", world.Leno(), "cleanup"); err == nil || !strings.Contains(err.Error(), "only root can do this") {
		t.Errorf("without root: %v, %s", err, out)
	}
}
