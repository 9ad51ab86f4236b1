package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// alone returns the faults that are not in a patient's list, by their rows in
// operations/doctor.mdx.
func alone() map[string]want {
	return map[string]want{
		"no agent runs on this host":        {check: "agent", words: []string{"no agent answers at 127.0.0.1:5366", "connection refused", "systemctl start leno"}},
		"the configuration has errors":      {check: "agent", also: []string{"config"}, words: []string{"no agent answers", "node_nam", "leno validate"}},
		"the kernel module is missing":      {check: "agent", also: []string{"module"}, words: []string{"no agent answers", "neither built in nor below /lib/modules"}},
		"`/dev/net/tun` is missing":         {check: "module", network: "NETWORK", shown: "device", words: []string{"/dev/net/tun: no such file", "load the kernel module tun"}},
		"Consul does not answer":            {check: "consul", shown: "consul", words: []string{"192.0.2.1:8500", "packets do not depend on it"}},
		"two networks share addresses":      {check: "overlap", network: "NETWORKx", shown: "network", words: []string{"POOL.128.0/17 of network NETWORKx", "POOL.0.0/16 of network NETWORK", "the later network waits", "another pool"}},
		"the host is a copy of another one": {check: "conflict", network: "NETWORK", shown: "conflict", words: []string{"copied", "On a machine that was cloned, stop the agent, remove the state"}},
		// TestLogin in e2e/store causes this one: Consul's shortest life of a token is too long here.
		"the JWT cannot be used any more": {check: "login", warning: true, words: []string{"token is expired", "replace the expired JWT in"}},
		// TestMesh in e2e/nomad causes this one.
		"Nomad has no network of leno": {check: "cni", warning: true, words: []string{"Nomad's jobs cannot use a network of leno", "copy leno.conflist"}},
		// TestUplinkChanges in e2e/datapath causes this one.
		"the host left its underlay":       {check: "underlay", warning: true, network: "NETWORK", shown: "underlay", words: []string{"the host has left eth0", "restore it"}},
		"the table of connections is full": {check: "conntrack", words: []string{"the kernel's table of connections is full", "nf_conntrack_max"}},
		"a peer is down":                   {check: "peers", warning: true, network: "NETWORK", peer: "HOST1", path: api.PathLost, words: []string{"its lease is held until its session ends"}},
	}
}

// configured restarts a host's agent with another configuration.
func configured(host int, change func(p *patient, config string) string) func(*patient) error {
	return func(p *patient) error {
		h := p.hosts[host]
		if h.Agent() != nil {
			if err := h.StopAgent(p.w.ctx); err != nil {
				return err
			}
		}
		return h.StartAgent(change(p, p.config(h)))
	}
}

// plain returns the configuration unchanged.
func plain(_ *patient, config string) string { return config }

// published sets a public address in the underlay block.
func published(address string) func(*patient, string) string {
	return func(p *patient, config string) string {
		return config + fmt.Sprintf("underlay {\n  public_ip = %q\n}\n", p.fill(address))
	}
}

// addresses returns faults in what a host publishes and in the routes to other hosts.
func addresses() []fault {
	return []fault{
		{"wrong public address", configured(0, published("192.0.2.200")), configured(0, plain),
			want{check: "public_ip", network: "NETWORK", shown: "paths", words: []string{"192.0.2.200 is not an address of this host", "set underlay.public_ip", "ADDR0"}}},
		{"duplicate public address", configured(0, published("ADDR1")), configured(0, plain),
			want{check: "public_ip", network: "NETWORK", shown: "conflict", words: []string{"another live host has the same public address", `"HOST1" (ADDR1`, "give each host its own"}}},
	}
}

// detours returns faults that the reverse path filter causes: packets of one direction take a cable,
// and those of the other the switch.
func detours() []fault {
	return []fault{
		{"`rp_filter` drops packets from another interface", func(p *patient) error {
			wire, err := p.w.Wire(p.w.ctx, p.hosts[0], p.hosts[1])
			if err != nil {
				return err
			}
			return on(0, "ip route add ADDR1/32 dev "+wire.Device+" src ADDR0; sysctl -qw net.ipv4.conf.all.rp_filter=1")(p)
		}, typed(0),
			onWay("rp_filter", "packets from ADDR1 that arrive on eth0 are dropped", "rp_filter is 1", "the route back is over wire0", "rp_filter=2")},
		{"`rp_filter` drops packets from an interface that the peer prefers", func(p *patient) error {
			wire, err := p.w.Wire(p.w.ctx, p.hosts[0], p.hosts[1])
			if err != nil {
				return err
			}
			// The name, the state, the address and the flags.
			link, err := p.hosts[0].Exec(p.w.ctx, "ip", "-brief", "link", "show", "dev", wire.Device)
			if err != nil {
				return err
			}
			return both(on(0, "ip route flush ADDR1; sysctl -qw net.ipv4.conf.all.rp_filter=1"),
				on(1, "ip route add ADDR0/32 dev "+wire.Device+" src ADDR1; ip neigh replace ADDR0 lladdr "+strings.Fields(link)[2]+" dev "+wire.Device))(p)
		}, typed(0),
			onWay("rp_filter", "packets from ADDR1 that arrive on wire0 or wire1 are dropped", "rp_filter is 1 there", "the route back is over eth0", "net.ipv4.conf.all.rp_filter=2")},
	}
}

// stored returns faults in a host's data and rights in Consul.
func stored() []fault {
	return []fault{
		{"a right in Consul is missing", rights(`key_prefix "leno/leases/" { policy = "read" }`), nil,
			want{check: "acl", whyPassing: "the lease is held, and nothing has to be written", words: []string{`key_prefix "leno/leases/" { policy = "write" }`, "to write this host's lease"}}},
		{"the lease record contradicts the device", func(p *patient) error {
			kv := p.w.Consul.Client().KV()
			pairs, _, err := kv.List("leno/leases/"+p.network+"/1", nil)
			if err != nil || len(pairs) != 1 {
				return fmt.Errorf("%d records, %w", len(pairs), err)
			}
			pairs[0].Value = []byte(strings.NewReplacer(`"mtu":1450`, `"mtu":1400`, `"vtep_mac":"0a:`, `"vtep_mac":"0e:`).Replace(string(pairs[0].Value)))
			_, err = kv.Put(pairs[0], &consul.WriteOptions{Token: rootToken})
			return err
		}, rights(""), want{check: "acl", shown: "lease", also: []string{"record"}, words: []string{"leno/leases/", "MTU of leno-NETWORK: the record says 1400, here it is 1450", "VTEP MAC"}}},
		{"the session in Consul is lost", func(p *patient) error {
			if err := rights(`session_prefix "" { policy = "read" }`)(p); err != nil {
				return err
			}
			return p.endSession()
		}, rights(""), want{check: "acl", shown: "lease", also: []string{"lease"}, words: []string{`session "consul" { policy = "write" }`, "for the session that holds the lease", "is no longer held: its session", "has ended"}}},
		{"Consul refuses the login", func(p *patient) error {
			jwt := filepath.Join(p.hosts[0].Dir, "jwt")
			if err := os.WriteFile(jwt, []byte("of.no.issuer"), 0o600); err != nil {
				return err
			}
			login := fmt.Sprintf("login {\n    auth_method = \"nope\"\n    bearer_token_file = %q\n  }", jwt)
			return configured(0, func(_ *patient, config string) string {
				return strings.Replace(config, "consul {\n", "consul {\n  "+login+"\n", 1)
			})(p)
		}, func(p *patient) error { return configured(0, withToken(p.secret))(p) }, want{check: "consul", shown: "login", words: []string{`auth method "nope" not found`, `create the auth method "nope" in Consul`}}},
	}
}

// token creates a token whose policy has the rules, and starts the agent of a host with it.
func (p *patient) token(host int, rules string) error {
	acl, as := p.w.Consul.Client().ACL(), &consul.WriteOptions{Token: rootToken}
	policy, _, err := acl.PolicyCreate(&consul.ACLPolicy{Name: p.hosts[host].Name, Rules: rules}, as)
	if err != nil {
		return err
	}
	token, _, err := acl.TokenCreate(&consul.ACLToken{Policies: []*consul.ACLTokenPolicyLink{{ID: policy.ID}}}, as)
	if err != nil {
		return err
	}
	if host == 0 {
		p.policy, p.secret = policy.ID, token.SecretID
	}
	return configured(host, withToken(token.SecretID))(p)
}

// withToken sets the token in the consul block.
func withToken(secret string) func(*patient, string) string {
	return func(_ *patient, config string) string {
		return strings.Replace(config, "consul {\n", fmt.Sprintf("consul {\n  token = %q\n", secret), 1)
	}
}

// rights changes the policy of the first host's token.
func rights(rules string) func(*patient) error {
	return func(p *patient) error {
		policy := &consul.ACLPolicy{ID: p.policy, Name: p.hosts[0].Name, Rules: p.fill(rules)}
		_, _, err := p.w.Consul.Client().ACL().PolicyUpdate(policy, &consul.WriteOptions{Token: rootToken})
		return err
	}
}

// entitled tests the faults in Consul.
func (p *patient) entitled() error {
	if err := p.token(0, ""); err != nil {
		return err
	}
	if err := p.start(); err != nil {
		return err
	}
	return p.treat(stored()...)
}

// cutOff separates a host from Consul until its session must have ended.
func (p *patient) cutOff() error {
	if err := p.start(); err != nil {
		return err
	}
	const name = "Consul does not answer"
	silent := alone()[name]
	ended := silent
	ended.shown, ended.also = "lease", []string{"lease"}
	return p.treat(fault{name, on(0, rule("output", "tcp dport 8500 drop")), nil, silent},
		fault{name + ", and the session has ended", unchanged, on(0, flush), ended})
}

// unchanged is the seed of a fault that follows from the one before.
func unchanged(*patient) error { return nil }

// noTUN starts an agent without /dev/net/tun, and then creates the device.
func (p *patient) noTUN() error {
	h := p.hosts[0]
	if err := os.WriteFile(h.ConfigFile(), []byte(p.config(h)), 0o644); err != nil {
		return err
	}
	if err := p.starts(p.hosts[1]); err != nil {
		return err
	}
	const script = "mount -t tmpfs -o mode=755 dev /dev; mkdir /dev/net; mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/urandom c 1 9\n" + `exec "$@"`
	var agent *lab.Process
	start := func(*patient) (err error) {
		agent, err = h.Start("unshare", "--mount", "sh", "-euc", script, "sh", binary, "agent", "-config-file", h.ConfigFile())
		return err
	}
	create := func(*patient) error {
		_, err := h.Exec(p.w.ctx, "nsenter", fmt.Sprintf("--target=%d", agent.Pid()), "--mount", "mknod", "-m", "666", "/dev/net/tun", "c", "10", "200")
		return err
	}
	const name = "`/dev/net/tun` is missing"
	if err := p.treat(fault{name, start, create, alone()[name]}); err != nil {
		return err
	}
	return agent.Stop(p.w.ctx)
}

// silent tests a host whose peer is cut off: doctor reports that, but not as a fault of this host. The peer's session is
// renewed until its lease was seen to be held.
func (p *patient) silent() error {
	peer := p.hosts[1]
	if err := p.start(); err != nil {
		return err
	}
	id, err := p.session(peer)
	if err != nil {
		return err
	}
	end, renewed := make(chan struct{}), make(chan error, 1)
	go func() { renewed <- p.w.Consul.Client().Session().RenewPeriodic("10s", id, nil, end) }()
	const name = "a peer is down"
	down := alone()[name]
	lapsed := down
	lapsed.path, lapsed.whyPassing, lapsed.words = "", "a host without a lease may be gone", []string{"its lease has lapsed"}
	powerOff := func(*patient) error { return errors.Join(peer.KillAgent(), peer.Cut(p.w.ctx)) }
	endSession := func(*patient) error {
		close(end)
		return <-renewed
	}
	powerOn := func(*patient) error { return errors.Join(peer.Mend(p.w.ctx), p.starts(peer)) }
	return p.treat(fault{name, powerOff, nil, down}, fault{name + ", and its lease has lapsed", endSession, powerOn, lapsed})
}

// overlapping tests a host with two networks that share addresses, where the second one was defined
// elsewhere.
func (p *patient) overlapping() error {
	h, other := p.hosts[0], p.hosts[1]
	name, pool := p.network+"x", p.pool+".128.0/17"
	if err := p.starts(h); err != nil {
		return err
	}
	file := filepath.Join(h.Dir, "other.hcl")
	if err := os.WriteFile(file, []byte(fmt.Sprintf("network %q {\n  ipv4 {\n    prefix = %q\n  }\n  backend \"vxlan\" {}\n}\n", name, pool)), 0o644); err != nil {
		return err
	}
	if out, err := h.Leno(p.w.ctx, "network", "apply", "-force", file); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if err := other.StartAgent(other.Config(other.Network(name, ""))); err != nil {
		return err
	}
	if err := other.WaitReady(p.w.ctx); err != nil {
		return err
	}
	reload := func(more ...string) func(*patient) error {
		return func(p *patient) error {
			if err := os.WriteFile(h.ConfigFile(), []byte(p.config(h, more...)), 0o644); err != nil {
				return err
			}
			_, err := h.Leno(p.w.ctx, "reload")
			return err
		}
	}
	const shared = "two networks share addresses"
	p.hosts = p.hosts[:1] // the other one is in no network of this host
	return p.treat(fault{shared, reload(h.Network(name, "")), reload(), alone()[shared]})
}

// unattended tests a host whose agent is not running: the command finds out what it can by itself.
func (p *patient) unattended() error {
	h := p.hosts[0]
	if err := p.start(); err != nil {
		return err
	}
	if err := h.StopAgent(p.w.ctx); err != nil {
		return err
	}
	said := func(name string, also []string, before ...string) error {
		f := p.filled(alone()[name])
		f.also = append(also, f.also...)
		return lab.WaitFor(p.w.ctx, "the command to tell that "+name, func(context.Context) error {
			d, err := p.w.alone(h, before...)
			if err == nil {
				err = f.is(d)
			}
			return err
		})
	}
	const stopped = "no agent runs on this host"
	if err := said(stopped, nil); err != nil {
		return err
	}
	if err := on(0, "ip link set leno-NETWORK address 0a:00:00:00:00:01; ip link set leno-NETWORK mtu 1300; sysctl -qw net.ipv4.ip_forward=0")(p); err != nil {
		return err
	}
	if err := said(stopped, []string{"record", "forwarding"}); err != nil {
		return err
	}
	if err := on(0, "ip link del leno-NETWORK; sysctl -qw net.ipv4.ip_forward=1")(p); err != nil {
		return err
	}
	const hidden = "mount -t tmpfs none /sys; mkdir -p /lib/modules; mount -t tmpfs none /lib/modules; mkdir /lib/modules/$(uname -r); touch /lib/modules/$(uname -r)/modules.dep /lib/modules/$(uname -r)/modules.builtin\n" + `exec "$@"`
	if err := said("the kernel module is missing", nil, "unshare", "--mount", "sh", "-euc", hidden, "sh"); err != nil {
		return err
	}
	if err := os.WriteFile(h.ConfigFile(), []byte("node_nam = \"x\"\n"), 0o644); err != nil {
		return err
	}
	return said("the configuration has errors", nil)
}

// everything tests two hosts with a network of each backend and without faults, also next to
// Docker's rules, where those let packets in, and behind a NAT.
func (p *patient) everything() error {
	w := p.w
	families := map[string]string{"4": "ipv4 { prefix = \"10.%d.0.0/16\" }\n", "6": "ipv6 { prefix = \"fd00:%d::/48\" }\n"}
	kinds := []struct{ families, block string }{
		{"4", "backend \"vxlan\" { vni = 101 }\nip_masq = true"}, {"6", `backend "vxlan" { vni = 102 }`},
		{"46", "backend \"vxlan\" {\nvni = 103\ndirect_routing = true\n}"}, {"46", `backend "udp" {}`}, {"46", `backend "host-gw" {}`}, {"4", `backend "alloc" {}`},
		{"46", `backend "wireguard" {}`},
	}
	for _, h := range p.hosts {
		var blocks []string
		for i, k := range kinds {
			body := k.block
			for _, f := range k.families {
				body = fmt.Sprintf(families[string(f)], 80+i) + body
			}
			blocks = append(blocks, h.Network(fmt.Sprintf("kind%d", i), body))
		}
		if err := h.StartAgent(h.Config(append([]string{"lease {\n  ttl = \"10s\"\n}\n"}, blocks...)...)); err != nil {
			return err
		}
	}
	for _, h := range p.hosts {
		if err := h.WaitReady(w.ctx); err != nil {
			return err
		}
	}
	h := p.hosts[0]
	all := func(d api.Diagnosis) error {
		answered := 0
		for _, f := range d.Findings {
			if f.Check == "peers" && strings.HasPrefix(f.Saw, "1 of 1 host answers") {
				answered++
			}
		}
		if answered != len(kinds)-1 {
			return fmt.Errorf("in %d networks a peer answers, want %d: %+v", answered, len(kinds)-1, d.Findings)
		}
		return nil
	}
	if err := w.until(h, "peers in all networks", all); err != nil {
		return err
	}
	if err := w.well(h); err != nil {
		return err
	}
	file, err := lab.ReadSubnetFile(filepath.Join(h.Dir, "kind0.env"))
	if err != nil {
		return err
	}
	gateway := file.Subnets()[0]
	docker := fmt.Sprintf("ip link add docker0 type bridge; ip addr add %s dev docker0; ip link set docker0 up; iptables-nft -P FORWARD DROP\n"+
		"iptables-nft -t raw -A PREROUTING -d %s -i leno-kind0 -j ACCEPT; iptables-nft -t raw -A PREROUTING -d %[2]s ! -i docker0 -j DROP\n"+
		"iptables-nft -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables-nft -A INPUT -i lo -j ACCEPT; iptables-nft -A INPUT -p icmp -j ACCEPT; "+
		"iptables-nft -A INPUT -p udp -m multiport --dports 8472,8285,51820 -j ACCEPT; iptables-nft -P INPUT DROP", gateway, gateway.Addr().Next())
	// A router of the test routes to alloc's subnets.
	file, err = lab.ReadSubnetFile(filepath.Join(p.hosts[1].Dir, "kind5.env"))
	if err != nil {
		return err
	}
	docker += fmt.Sprintf("\nip route add %s via ADDR1 proto bird", file.Subnets()[0].Masked())
	if err := on(0, docker)(p); err != nil {
		return err
	}
	return w.well(h)
}

// guarded tests hosts whose rules accept what the network needs and no more.
func (p *patient) guarded() error {
	if err := p.start(); err != nil {
		return err
	}
	const known = "iptables-nft -A CHAIN DEV lo -j ACCEPT; iptables-nft -A CHAIN -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT; "
	out := strings.NewReplacer("CHAIN", "OUTPUT", "DEV", "-o").Replace(known)
	for _, rules := range []func(*patient) error{
		on(0, out+"iptables-nft -A OUTPUT -p icmp -j ACCEPT; iptables-nft -A OUTPUT -p udp --dport 8472 -j ACCEPT; iptables-nft -A OUTPUT -p tcp --dport 8500 -j ACCEPT; iptables-nft -P OUTPUT DROP"),
		on(1, strings.NewReplacer("CHAIN", "INPUT", "DEV", "-i").Replace(known)+"iptables-nft -A INPUT -i eth0 -p icmp -j ACCEPT; iptables-nft -A INPUT -i eth0 -p udp --dport 8472 -j ACCEPT; iptables-nft -P INPUT DROP"),
		on(1, "iptables-nft -D INPUT -i eth0 -p icmp -j ACCEPT"),
	} {
		if err := rules(p); err != nil {
			return err
		}
		if err := p.w.well(p.hosts[0]); err != nil {
			return err
		}
	}
	return nil
}

// translated tests a host whose packets pass another one that translates its address.
func (p *patient) translated() error {
	w, h, peer, nat := p.w, p.hosts[0], p.hosts[1], p.hosts[2]
	wire, err := w.Wire(w.ctx, h, nat)
	if err != nil {
		return err
	}
	inside, outside := wire.Addrs[0][0], wire.Addrs[1][0]
	if _, err := nat.Exec(w.ctx, "sh", "-euc", fmt.Sprintf("iptables-nft -t nat -A PREROUTING -i eth0 -p udp --dport 8472 -j DNAT --to-destination %s; iptables-nft -t nat -A POSTROUTING -o eth0 -s %s -j MASQUERADE", inside, inside)); err != nil {
		return err
	}
	if _, err := h.Exec(w.ctx, "ip", "route", "add", peer.Addrs[0].String()+"/32", "via", outside.String(), "dev", wire.Device, "src", inside.String()); err != nil {
		return err
	}
	if err := peer.StartAgent(p.config(peer)); err != nil {
		return err
	}
	public := fmt.Sprintf("underlay {\n  interfaces = [%q]\n  public_ip = %q\n}\n", wire.Device, nat.Addrs[0])
	if err := h.StartAgent(p.config(h, public)); err != nil {
		return err
	}
	for _, h := range p.hosts[:2] {
		if err := h.WaitReady(w.ctx); err != nil {
			return err
		}
		if err := w.until(h, "a peer", func(d api.Diagnosis) error {
			for _, f := range d.Findings {
				if f.Check == "peers" && f.Status == api.FindingOK && strings.HasPrefix(f.Saw, "1 of 1") {
					return nil
				}
			}
			return fmt.Errorf("%s", lines(d.Findings))
		}); err != nil {
			return err
		}
		if err := w.well(h); err != nil {
			return err
		}
	}
	return nil
}
