package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/docpages"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/mounts"
	"github.com/lenonet/leno/e2e/world"
)

// A flip is a fault that one check reports.
type flip struct {
	network       string // "" for a check of the agent as a whole
	check, status string
	also          []string // checks that fail together with it
	fault, cure   func() error
}

// elsewhere lists the checks whose faults other tests cause.
var elsewhere = map[string]string{
	"etcd":       "store.TestEtcd: the hosts here use Consul, and an agent has one store",
	"kubernetes": "kubernetes.TestContract: the hosts here use Consul, and an agent has one store",
	"switch":     "network.TestEndSwitch: it exists only while the network is being switched",
	"keys":       "network.TestRotateKeys: it exists only in networks whose keys are rotated periodically",
	"login":      "store.TestLogin: the hosts here have tokens, and the check exists only with a login",
	"paths":      "doctor.TestDoctor: not all of the hosts here can reach each other",
	"node":       "agent.TestReloadWhileTheNameIsUnknown: it is there while an agent starts, and at no other time",
}

// TestHealthFlips causes a fault for each check of a running agent. The check must report it within
// two of the intervals on the documentation page, only related checks may report it as well, and
// the check must pass again within two intervals after the repair. The service in Consul's
// catalogue shows which hosts are there all the time.
func TestHealthFlips(t *testing.T) {
	f := newFlips(t)
	f.catalogue()
	var groups sync.WaitGroup
	for _, rows := range f.groups() {
		groups.Go(func() {
			for _, row := range rows.flips {
				if err := f.try(rows.host, row); err != nil {
					t.Errorf("%s: %s of %q: %v", rows.host.Name, row.check, row.network, err)
				}
			}
		})
	}
	groups.Wait()
	if err := f.try(f.hosts[0], flip{check: "consul", status: api.Warning, also: []string{"lease", "snapshot"},
		fault: f.w.Consul.Kill, cure: func() error { return f.w.Consul.Start(f.w.Ctx) }}); err != nil {
		t.Error(err)
	}
	f.comeAndGo()

	tried := slices.Collect(maps.Keys(elsewhere))
	for check := range f.tried {
		tried = append(tried, check)
	}
	slices.Sort(tried)
	if shown := slices.Sorted(maps.Keys(f.intervals)); !slices.Equal(tried, shown) {
		t.Errorf("checks that were tried %q, checks of the page %q", tried, shown)
	}
}

// flips is the lab: host-a and host-b in network n, host-c with an underlay of its own, and host-d
// in n and s.
type flips struct {
	w         *testWorld
	hosts     []*mounts.Host
	policies  []*consul.ACLPolicy
	intervals map[string]time.Duration // of each check, from the page

	mu    sync.Mutex
	tried map[string]bool
}

type flipGroup struct {
	host  *mounts.Host
	flips []flip
}

func newFlips(t *testing.T) *flips {
	t.Helper()
	w := newWorld(t, lab.Options{Hosts: 4, ConsulConfig: fmt.Sprintf(
		`{"acl": {"enabled": true, "default_policy": "deny", "tokens": {"initial_management": %[1]q, "agent": %[1]q, "default": %[1]q}}, "ports": {"dns": 8600}}`, world.OperatorToken)})
	w.Eventually("Consul to know its first token", func(context.Context) error {
		_, _, err := w.Consul.Client().ACL().PolicyList(nil)
		return err
	})
	f := &flips{w: w, intervals: checkIntervals(t), tried: map[string]bool{}}
	for i, h := range w.Hosts {
		blocks := []string{"probe_interval = \"0s\"\n" + world.ShortLease, "network \"n\" {\n  ipv4 {\n    prefix = \"10.5.0.0/16\"\n  }\n  backend \"vxlan\" {}\n  ip_masq = true\n}\n"}
		switch i {
		case 2:
			_, err := h.Exec(w.Ctx, "sh", "-euc", "ip link add up0 type veth peer name up1; ip addr add 198.51.100.3/24 dev up0; ip link set up0 up; ip link set up1 up; sysctl -qw net.ipv4.ip_forward=1")
			w.Must(err)
			blocks[1] = strings.Replace(blocks[1], "ip_masq = true", "forward = false", 1)
			blocks = append(blocks, "underlay {\n  interfaces = [\"up0\"]\n}\n")
			fallthrough
		case 3:
			blocks = append(blocks, "network \"s\" {\n  ipv4 {\n    prefix = \"10.6.0.0/16\"\n  }\n  backend \"alloc\" {}\n}\n")
		}
		f.policies = append(f.policies, f.token(h))
		config := strings.Replace(h.Config(blocks...), fmt.Sprintf("%q", h.DataDir()), `"/var/lib/leno"`, 1)
		config = strings.Replace(config, "consul {\n", fmt.Sprintf("consul {\n  token_file = %q\n", filepath.Join(h.Dir, "token")), 1)
		p := mounts.New(w.World, h, config, nil)
		w.Must(p.Launch("mkdir -p /run/leno /var/lib/leno\n" + mounts.Run))
		f.hosts = append(f.hosts, p)
	}
	for _, p := range f.hosts {
		w.Must(p.WaitPassing())
		w.Must(p.WaitCheck("routes", api.Passing, "3 peers"))
	}
	return f
}

// rules returns the ACL rules of the agents, which use the Consul server directly. less adds more
// specific rules that take rights away.
func rules(less string) string {
	return "key_prefix \"leno/\" {\n  policy = \"write\"\n}\nsession \"consul\" {\n  policy = \"write\"\n}\nservice \"leno\" {\n  policy = \"write\"\n}\n" + less
}

// token gives a host a token with a policy of its own.
func (f *flips) token(h *lab.Host) *consul.ACLPolicy {
	f.w.T.Helper()
	acl := f.w.Consul.Client().ACL()
	policy, _, err := acl.PolicyCreate(&consul.ACLPolicy{Name: h.Name, Rules: rules("")}, nil)
	f.w.Must(err)
	token, _, err := acl.TokenCreate(&consul.ACLToken{Policies: []*consul.ACLLink{{ID: policy.ID}}}, nil)
	f.w.Must(err)
	f.w.Must(os.WriteFile(filepath.Join(h.Dir, "token"), []byte(token.SecretID+"\n"), 0o600))
	return policy
}

// rights returns a function that changes the rights of a host.
func (f *flips) rights(host int, rules string) func() error {
	return func() error {
		policy := *f.policies[host]
		policy.Rules = rules
		_, _, err := f.w.Consul.Client().ACL().PolicyUpdate(&policy, nil)
		return err
	}
}

// groups returns the faults of each host, in order.
func (f *flips) groups() []flipGroup {
	a, b, c, d := f.hosts[0], f.hosts[1], f.hosts[2], f.hosts[3]
	sh := func(p *mounts.Host, script string) func() error {
		return func() error {
			_, err := p.Exec(f.w.Ctx, "sh", "-euc", script)
			return err
		}
	}
	// The kernel sends no notification for some of these changes; the changed alias triggers a full
	// check.
	inside := func(p *mounts.Host, script string) func() error {
		return func() error {
			return errors.Join(p.Inside("sh", "-euc", script), sh(p, "ip link set leno-n alias x")())
		}
	}
	kv := f.w.Consul.Client().KV()
	put := func(key, value string) func() error {
		return func() error {
			_, err := kv.Put(&consul.KVPair{Key: key, Value: []byte(value)}, nil)
			return err
		}
	}
	peer, own := f.subnet(b, "n"), f.subnet(a, "n")
	raw := fmt.Sprintf("PREROUTING -d %s ! -i docker0 -j DROP", own.Addr().Next())
	pair, _, err := kv.Get("leno/networks/s", nil)
	f.w.Must(err)
	// On a busy machine the agent may create the device again between the two commands.
	const replaceDevice = `for try in 1 2 3 4 5 6 7 8 9 10; do
		printf 'link del leno-n\nlink add leno-n type bridge\n' | ip -batch - && exit 0
	done
	exit 1`
	noSessions := strings.Replace(rules(""), "session \"consul\" {\n  policy = \"write\"", "session \"consul\" {\n  policy = \"read\"", 1)
	return []flipGroup{
		{a, []flip{
			{network: "n", check: "device", status: api.Critical, fault: sh(a, replaceDevice), cure: sh(a, "ip link del leno-n")},
			{network: "n", check: "routes", status: api.Critical, fault: sh(a, fmt.Sprintf("ip route replace %s dev eth0 proto bird; ip link set leno-n alias x", peer)), cure: sh(a, fmt.Sprintf("ip route del %s dev eth0 proto bird", peer))},
			{network: "n", check: "foreign_rules", status: api.Warning, fault: sh(a, "iptables -t raw -A "+raw), cure: sh(a, "iptables -t raw -D "+raw)},
		}},
		{b, []flip{
			{network: "n", check: "firewall", status: api.Critical,
				fault: func() error {
					return errors.Join(b.Inside("sh", "-euc", "mount --bind /bin/false $(readlink -f $(command -v iptables))"), sh(b, "iptables -F LENO-FORWARD")())
				},
				cure: func() error { // lazy, because the agent may be running the program
					return b.Inside("sh", "-euc", "umount -l $(readlink -f $(command -v iptables))")
				}},
			{network: "n", check: "subnet_file", status: api.Critical, fault: inside(b, "mount -t tmpfs -o ro tmpfs /run/leno"), cure: inside(b, "umount -l /run/leno")},
			{network: "n", check: "data_dir", status: api.Warning, fault: inside(b, "cp -a /var/lib/leno /run/copy; rm /run/copy/n.json; mount --bind /run/copy /run/copy; mount -o remount,bind,ro /run/copy; mount --bind /run/copy /var/lib/leno"), cure: inside(b, "umount -l /var/lib/leno; umount -l /run/copy; rm -r /run/copy")},
		}},
		{c, []flip{
			{network: "n", check: "underlay", status: api.Warning, fault: sh(c, "ip link set up0 down"), cure: sh(c, "ip link set up0 up")},
			{network: "n", check: "forwarding", status: api.Warning, fault: sh(c, "sysctl -qw net.ipv4.ip_forward=0; ip link set leno-n alias x"), cure: sh(c, "sysctl -qw net.ipv4.ip_forward=1; ip link set leno-n alias x")},
			{network: "n", check: "conflict", status: api.Critical, also: []string{"lease", "routes"},
				fault: sh(c, fmt.Sprintf("ip addr add %s/32 dev up0; ip addr del 198.51.100.3/24 dev up0", a.Addrs[0])),
				cure:  sh(c, fmt.Sprintf("ip addr add 198.51.100.3/24 dev up0; ip addr del %s/32 dev up0", a.Addrs[0]))},
		}},
		{d, []flip{
			{check: "records", status: api.Warning, fault: put("leno/networks/zz", "{"), cure: func() error {
				_, err := kv.Delete("leno/networks/zz", nil)
				return err
			}},
			{network: "s", check: "network", status: api.Warning, also: []string{"records"}, fault: put("leno/networks/s", `{"version":2}`), cure: put("leno/networks/s", string(pair.Value))},
			{network: "n", check: "consul", status: api.Warning, also: []string{"lease"}, fault: f.rights(3, noSessions), cure: f.rights(3, rules(""))},
			{network: "n", check: "lease", status: api.Warning, also: []string{"consul"},
				fault: func() error {
					lease, _, err := kv.Get("leno/leases/n/"+strings.ReplaceAll(f.subnet(d, "n").String(), "/", "-"), nil)
					if err != nil {
						return err
					}
					if err := f.rights(3, noSessions)(); err != nil {
						return err
					}
					_, err = f.w.Consul.Client().Session().Destroy(lease.Session, nil)
					return err
				}, cure: f.rights(3, rules(""))},
			{network: "s", check: "snapshot", status: api.Warning, also: []string{"consul"},
				fault: func() error {
					err := f.rights(3, rules("key_prefix \"leno/leases/s/\" {\n  policy = \"deny\"\n}\nkey_prefix \"leno/changes/s/\" {\n  policy = \"deny\"\n}\n"))()
					// In a quiet network the next request would be sent only after a minute.
					return errors.Join(err, f.renumber(c, "s"))
				}, cure: f.rights(3, rules(""))},
		}},
	}
}

// renumber makes a host take another subnet, and waits until the catalogue shows it.
func (f *flips) renumber(p *mounts.Host, network string) error {
	before := f.subnet(p, network)
	if _, err := p.Exec(f.w.Ctx, world.Leno(), "lease", "revoke", "-token="+world.OperatorToken, network, before.String()); err != nil {
		return err
	}
	return f.shown(p.Name, func(s *consul.CatalogService) error {
		if now := s.ServiceMeta["subnet_"+network]; now == "" || now == before.String() {
			return fmt.Errorf("subnet %q, before %s", now, before)
		}
		return nil
	})
}

// try causes a fault and repairs it.
func (f *flips) try(p *mounts.Host, row flip) error {
	interval := f.intervals[row.check]
	f.mu.Lock()
	f.tried[row.check] = true
	f.mu.Unlock()
	if err := p.WaitPassing(); err != nil {
		return err
	}
	var took [2]time.Duration
	for i, part := range []struct {
		do     func() error
		status string
	}{{row.fault, row.status}, {row.cure, api.Passing}} {
		if err := part.do(); err != nil {
			return err
		}
		began := time.Now() // doing it may take as long as noticing it
		// A busy machine needs longer than the interval.
		err := f.awaits(p, row, part.status, began.Add(10*interval))
		if err != nil {
			return err
		}
		took[i] = time.Since(began).Round(10 * time.Millisecond)
	}
	f.w.T.Logf("%s: %s of %q flips after %s and back after %s, within 10 × %s", p.Name, row.check, row.network, took[0], took[1], interval)
	return nil
}

// awaits polls until the check has the status, and fails if an unrelated check reports a fault in
// that time.
func (f *flips) awaits(p *mounts.Host, row flip, status string, until time.Time) error {
	for {
		checks, err := p.Statuses(f.w.Ctx)
		if err != nil {
			return err
		}
		for key, c := range checks {
			network, check, _ := strings.Cut(key, "/")
			concerned := check == row.check || slices.Contains(row.also, check) ||
				network == "" && check == "records" || // a definition that one group breaks and every host reads
				row.network != "" && network != "" && network != row.network
			if c.Status != api.Passing && !concerned {
				return fmt.Errorf("%s is %s: %s", key, c.Status, c.Reason)
			}
		}
		if checks[row.network+"/"+row.check].Status == status {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("not %s in time: %v", status, checks)
		}
		select {
		case <-f.w.Ctx.Done():
			return f.w.Ctx.Err()
		case <-time.After(30 * time.Millisecond):
		}
	}
}

func (f *flips) subnet(p *mounts.Host, network string) netip.Prefix {
	f.w.T.Helper()
	var n api.Network
	f.w.Must(world.GetJSON(f.w.Ctx, p.Host, "/v1/network/"+network, &n))
	return n.Local.Subnets[0]
}

// checkIntervals returns the last value in the interval column of each check.
func checkIntervals(t *testing.T) map[string]time.Duration {
	t.Helper()
	out := map[string]time.Duration{}
	for _, row := range docpages.Rows(t, docpages.Path("operations/health"), "") {
		all := regexp.MustCompile(`(\d+) s\b`).FindAllStringSubmatch(row[3], -1)
		if len(all) == 0 {
			t.Errorf("%s: no interval in %q", row[0], row[3])
			continue
		}
		n, err := strconv.Atoi(all[len(all)-1][1])
		if err != nil {
			t.Fatal(err)
		}
		out[docpages.Codes(row[0])[0]] = time.Duration(n) * time.Second
	}
	return out
}
