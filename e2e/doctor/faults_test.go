package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// A fault is one way to break a host or its path to another host. Its name is that of its row in
// operations/doctor.mdx.
type fault struct {
	name       string
	seed, cure func(p *patient) error
	want       want
}

// on runs a shell script on one of the patient's hosts, or on the switch between them if host is
// -1.
func on(host int, script string) func(*patient) error {
	return func(p *patient) error {
		ns := p.w.Switch
		if host >= 0 {
			ns = p.hosts[host].Namespace
		}
		_, err := ns.Exec(p.w.ctx, "sh", "-euc", p.fill(script))
		return err
	}
}

// fill replaces the placeholders in a text with names and addresses.
func (p *patient) fill(text string) string {
	words := []string{"NETWORK", p.network, "POOL", p.pool}
	for i, h := range p.hosts {
		words = append(words, fmt.Sprintf("HOST%d", i), h.Name, fmt.Sprintf("ADDR%d", i), h.Addrs[0].String(), fmt.Sprintf("DIR%d", i), h.Dir)
	}
	return strings.NewReplacer(words...).Replace(text)
}

// both runs the functions one after the other.
func both(all ...func(*patient) error) func(*patient) error {
	return func(p *patient) error {
		for _, f := range all {
			if err := f(p); err != nil {
				return err
			}
		}
		return nil
	}
}

// typed runs the first command of the remedy that doctor gave last, on some of the hosts.
func typed(hosts ...int) func(*patient) error {
	return func(p *patient) error {
		m := firstCommand.FindStringSubmatch(p.remedy)
		if m == nil {
			return fmt.Errorf("no command in %q", p.remedy)
		}
		for _, i := range hosts {
			script := fmt.Sprintf("leno() { %s \"$@\" -token=%s; }\n%s", binary, rootToken, m[1])
			if out, err := p.hosts[i].Exec(p.w.ctx, "sh", "-euc", script); err != nil {
				return fmt.Errorf("%s: %w: %s", m[1], err, out)
			}
		}
		return nil
	}
}

// ended types the remedy on the first host, checks that it ends the fault, and removes what the fault consisted of.
func ended(cleanup string) func(*patient) error {
	return both(typed(0), (*patient).isWell, on(0, cleanup))
}

// isWell blocks until doctor on the first host finds nothing.
func (p *patient) isWell() error { return p.w.well(p.hosts[0]) }

// treat causes each fault, checks that it is shown without being asked and that doctor names it, repairs it, and checks that
// nothing reports it any more.
func (p *patient) treat(faults ...fault) error {
	for _, f := range faults {
		if err := p.treatOne(f); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

func (p *patient) treatOne(f fault) error {
	if err := f.seed(p); err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	m := measurement{name: f.name}
	seeded := time.Now()
	if err := p.shows(f.want); err != nil {
		return err
	}
	if f.want.whyPassing == "" {
		m.shown = time.Since(seeded)
	}
	if err := p.finds(f.want); err != nil {
		return err
	}
	m.named = time.Since(seeded)
	if f.want.whyPassing != "" {
		if err := p.isPassing(); err != nil {
			return fmt.Errorf("although %s: %w", f.want.whyPassing, err)
		}
	}
	if f.cure == nil {
		p.w.add(m)
		return nil
	}
	cured := time.Now()
	if err := f.cure(p); err != nil {
		return fmt.Errorf("cure: %w", err)
	}
	if err := p.recovers(); err != nil {
		return fmt.Errorf("cured: %w", err)
	}
	m.passing = time.Since(cured)
	p.w.add(m)
	return nil
}

// recovers blocks until the first host shows nothing of a fault: health is passing, the path to the second host is reached,
// and doctor finds nothing.
func (p *patient) recovers() error {
	if err := p.isPassing(); err != nil {
		return err
	}
	if err := p.showsPath(api.PathReached); err != nil {
		return err
	}
	return p.isWell()
}

// isPassing blocks until all checks of the first host are passing.
func (p *patient) isPassing() error {
	h := p.hosts[0]
	return lab.WaitFor(p.w.ctx, "all checks of "+h.Name+" to be passing", func(ctx context.Context) error {
		code, body, err := h.Get(ctx, "/healthz")
		if err != nil {
			return err
		}
		var report api.Health
		if err := json.Unmarshal([]byte(body), &report); err != nil {
			return err
		}
		if code != http.StatusOK || report.Status != api.Passing {
			return fmt.Errorf("%d: %s", code, body)
		}
		return nil
	})
}

// shows blocks until the first host shows, without being asked for a diagnosis, the check of the fault, and that the path to
// the second host is broken, if the fault breaks it for packets of the kind that the agent sends all the time.
func (p *patient) shows(w want) error {
	states := map[string]string{"port": api.PathLost, "rp_filter": api.PathLost, "path_mtu": api.PathShort}
	if w.path == "" && w.whyPassing == "" && !w.warning && w.peer != "" {
		w.path = states[w.check]
	}
	if w.shown == "" && w.path == "" && w.whyPassing == "" {
		return errors.New("the test does not say what shows the fault")
	}
	if w.shown != "" {
		if err := p.showsCheck(p.hosts[0], w.shown); err != nil {
			return err
		}
	}
	if w.path != "" {
		return p.showsPath(w.path)
	}
	return nil
}

// showsCheck blocks until health, status, page and metrics of a host show that a check is not passing, and why.
func (p *patient) showsCheck(h *lab.Host, check string) error {
	return lab.WaitFor(p.w.ctx, fmt.Sprintf("%s to show the check %s", h.Name, check), func(ctx context.Context) error {
		var report api.Health
		if err := getJSON(ctx, h, "/healthz", &report); err != nil {
			return err
		}
		isShown := func(c api.Check) bool { return c.Name == check && c.Status != api.Passing }
		network, all := p.network, report.Checks
		for _, n := range report.Networks {
			if !slices.ContainsFunc(all, isShown) {
				network, all = n.Network, n.Checks
			}
		}
		i := slices.IndexFunc(all, isShown)
		if i < 0 {
			return fmt.Errorf("health: %+v", report)
		}
		status, _ := h.Leno(ctx, "status") // the exit code says that something is wrong
		words := strings.Fields(all[i].Reason)
		reason := strings.Join(words[:min(len(words), 5)], " ")
		if !strings.Contains(strings.Join(strings.Fields(status), " "), reason) {
			return fmt.Errorf("the status does not say %q: %s", reason, status)
		}
		if _, page, err := h.Get(ctx, "/ui/network/"+network); err != nil || !strings.Contains(page, reason) {
			return fmt.Errorf("the page does not say %q: %w", reason, err)
		}
		_, metrics, err := h.Get(ctx, "/v1/agent/metrics?format=prometheus")
		if metric := regexp.MustCompile(fmt.Sprintf(`leno_health_check\{check=%q,.*\} [12]`, check)); err == nil && !metric.MatchString(metrics) {
			err = fmt.Errorf("no metric like %s", metric)
		}
		return err
	})
}

// showsPath blocks until the list of peers, status, page, health and metrics of the first host show a state of the path to the
// second.
func (p *patient) showsPath(state string) error {
	if len(p.hosts) < 2 {
		return nil
	}
	h, peer := p.hosts[0], p.hosts[1].Name
	return lab.WaitFor(p.w.ctx, fmt.Sprintf("%s to show that the path to %s is %s", h.Name, peer, state), func(ctx context.Context) error {
		var list api.PeerList
		if err := getJSON(ctx, h, "/v1/network/"+p.network+"/peers", &list); err != nil {
			return err
		}
		i := slices.IndexFunc(list.Peers, func(o api.Peer) bool { return o.Node == peer })
		if i < 0 || list.Peers[i].Path == nil || list.Peers[i].Path.State != state {
			return fmt.Errorf("the peers are %+v", list.Peers)
		}
		reason := list.Peers[i].Path.Reason
		status, _ := h.Leno(ctx, "status") // the exit code says that something is wrong
		if !strings.Contains(strings.Join(strings.Fields(status), " "), reason) {
			return fmt.Errorf("the status does not say %q: %s", reason, status)
		}
		if _, page, err := h.Get(ctx, "/ui/network/"+p.network); err != nil || !strings.Contains(page, reason) {
			return fmt.Errorf("the page does not say %q: %w", reason, err)
		}
		var report api.Health
		if err := getJSON(ctx, h, "/healthz", &report); err != nil {
			return err
		}
		for _, n := range report.Networks {
			for _, c := range n.Checks {
				isNamed := c.Status == api.Warning && strings.Contains(c.Reason, peer)
				if n.Network == p.network && c.Name == "paths" && isNamed != (state != api.PathReached) {
					return fmt.Errorf("health: %+v", c)
				}
			}
		}
		_, metrics, err := h.Get(ctx, "/v1/agent/metrics?format=prometheus")
		if line := regexp.MustCompile(fmt.Sprintf("network=%q,state=%q} [1-9]", p.network, state)); err == nil && !line.MatchString(metrics) {
			err = fmt.Errorf("no metric like %s", line)
		}
		return err
	})
}

// getJSON requests a path from a host's agent, whatever the status of the response is.
func getJSON(ctx context.Context, h *lab.Host, path string, out any) error {
	_, body, err := h.Get(ctx, path)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(body), out)
}

const flush = "nft delete table inet seeded"

// rule returns the command that adds a rule in a chain of its own.
func rule(hook, rule string) string {
	return fmt.Sprintf("nft -f - <<'E'\ntable inet seeded {\nchain c { type filter hook %s priority -10; policy accept;\n%s\n}\n}\nE", hook, rule)
}

// onWay returns the finding that most faults with a peer have in common.
func onWay(check string, words ...string) want {
	return want{check: check, network: "NETWORK", peer: "HOST1", words: words}
}

// filled returns w with names and addresses filled in.
func (p *patient) filled(w want) want {
	w.network, w.peer = p.fill(w.network), p.fill(w.peer)
	w.words = strings.Split(p.fill(strings.Join(w.words, "\x00")), "\x00")
	return w
}

// finds blocks until doctor on the first host reports the fault first and no fault that is not
// there.
func (p *patient) finds(w want) error {
	w = p.filled(w)
	return p.w.until(p.hosts[0], w.check, func(d api.Diagnosis) error {
		if err := w.is(d); err != nil {
			return err
		}
		p.remedy = d.Findings[0].Do + "\n" + d.Findings[0].Saw
		return nil
	})
}

// here returns faults on the path between two hosts that rules on this host cause.
func here() []fault {
	return []fault{
		{"UDP port closed by a rule of this host", on(0, rule("input", "udp dport 8472 drop")), on(0, flush),
			onWay("port", "nftables table inet seeded chain c", "udp dport 8472 drop", "what ADDR1 sends to UDP port 8472", "accept UDP port 8472 from ADDR1")},
		{"UDP port closed by a rule of this host", on(0, "iptables-nft -A OUTPUT -p udp --dport 8472 -j REJECT"), typed(0),
			onWay("port", "table filter chain OUTPUT", "-j REJECT", "what this host sends to UDP port 8472 of ADDR1")},
	}
}

// there returns faults that rules on the other host cause, one per direction.
func there() []fault {
	return []fault{
		{"UDP port closed on the way to a peer", on(1, rule("input", "udp dport 8472 drop")), on(1, flush),
			onWay("port", "packets to its UDP port 8472 are lost", "packets from it to UDP port 8472 arrive", "from ADDR0 to ADDR1")},
		{"UDP port closed on the way from a peer", on(1, rule("output", "udp dport 8472 drop")), on(1, flush),
			onWay("port", "packets to its UDP port 8472 arrive there", "packets from it are lost", "from ADDR1 to ADDR0")},
	}
}

// between returns faults that affect both directions.
func between() []fault {
	cut := strings.ReplaceAll(rule("forward", "ip saddr { ADDR0, ADDR1 } udp dport 8472 drop"), "inet seeded", "bridge NETWORK")
	return []fault{
		{"UDP port closed both ways", on(-1, cut), on(-1, "nft delete table bridge NETWORK"), onWay("port", "in either direction", "both ways")},
		{"UDP port refused by a peer", on(1, rule("input", "udp dport 8472 reject")), on(1, flush), onWay("port", "refuses packets", "ADDR1 reports for UDP port 8472", "port unreachable")},
	}
}

// sizes returns faults that affect only some packets.
func sizes() []fault {
	return []fault{
		{"UDP and TCP packets are lost in the tunnel", on(1, rule("prerouting", "udp dport 8472 @th,312,8 { 6, 17 } drop")), on(1, flush),
			want{check: "checksum", network: "NETWORK", peer: "HOST1", words: []string{"UDP and TCP do not", "checksum_offload"}, shown: "paths"}},
		{"path MTU too small, without ICMP errors", on(-1, "ip link set HOST1 mtu 1400"),
			both(typed(0, 1), (*patient).isWell, on(-1, "ip link set HOST1 mtu 1500"), on(0, "ip link set eth0 mtu 1500"), on(1, "ip link set eth0 mtu 1500")),
			onWay("path_mtu", "those of 1450, its MTU, do not", "1400 reach HOST1 over the underlay", "`ip link set dev eth0 mtu 1400`")},
		{"path MTU too small, with ICMP errors", both(
			on(-1, "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.br0.send_redirects=0; ip route add ADDR1/32 dev br0 mtu 1400"),
			on(0, "ip route add ADDR1/32 via 192.0.2.254")), both(on(-1, "ip route del ADDR1/32 dev br0"), on(0, "ip route del ADDR1/32 via 192.0.2.254; ip route flush cache")),
			want{check: "path_mtu", warning: true, network: "NETWORK", peer: "HOST1", whyPassing: "all packets arrive, in fragments", words: []string{"fragments packets", "192.0.2.254 reports it", "fragmentation needed, 1400", "mtu 1400"}}},
	}
}

// dropWeb closes a port of a host's containers before leno's jump, as an administrator might.
const dropWeb = "iptables-nft -I FORWARD 1 -p tcp -d $(sed -n 's/^LENO_SUBNET=\\(.*\\)\\.1\\/\\(.*\\)/\\1.0\\/\\2/p' DIR0/NETWORK.env) --dport 80 -j DROP"

// containers returns faults between the containers and the network.
func containers() []fault {
	const intended = "an administrator may want the rule"
	return []fault{
		{"`ip_forward` is off", on(0, "sysctl -qw net.ipv4.ip_forward=0"), typed(0),
			want{check: "forwarding", network: "NETWORK", shown: "forwarding", words: []string{"net.ipv4.ip_forward", "is 0", "sysctl -w"}}},
		{"forward policy DROP", on(0, "iptables-nft -P FORWARD DROP"), on(0, "iptables-nft -P FORWARD ACCEPT"),
			want{check: "rules", network: "NETWORK", shown: "foreign_rules", words: []string{"chain FORWARD", "policy DROP", "forward = true"}}},
		{"Docker's rules in `raw`", on(0, "ip link add docker0 type bridge; ip addr add $(sed -n 's/^LENO_SUBNET=//p' DIR0/NETWORK.env) dev docker0; ip link set docker0 up; "+
			"iptables-nft -t raw -A PREROUTING -d $(sed -n 's/^LENO_SUBNET=\\(.*\\)\\.1\\/.*/\\1.2/p' DIR0/NETWORK.env) ! -i docker0 -j DROP"),
			on(0, "iptables-nft -t raw -F PREROUTING; ip link del docker0"),
			want{check: "rules", network: "NETWORK", shown: "foreign_rules", words: []string{"table raw chain PREROUTING", "! -i docker0", "--allow-direct-routing"}}},
		{"a rule drops some packets of containers", on(0, dropWeb), typed(0),
			want{check: "rules", warning: true, network: "NETWORK", whyPassing: intended, words: []string{"table filter chain FORWARD", "-p tcp -m tcp --dport 80 -j DROP", "TCP, to port 80", "it may be intended", "-t filter -D FORWARD -d POOL."}}},
		{"a rule drops some packets of containers", on(0, rule("forward", "udp dport { 53, 1000-2000 } reject")), on(0, flush),
			want{check: "rules", warning: true, network: "NETWORK", whyPassing: intended, words: []string{"nftables table inet seeded chain c", "udp dport { 53, 1000-2000 } reject", "UDP, to port 53, 1000-2000", "it may be intended"}}},
		// The route covers two subnets: to the host's own one it would be that of its containers' bridge.
		{"a route of the host's own in the pool", on(0, "ip link add lan0 type bridge; ip link set lan0 up; ip route add POOL.200.0/23 dev lan0"), ended("ip link del lan0"),
			want{check: "overlap", network: "NETWORK", whyPassing: "no host has a subnet there, so no packet is lost", words: []string{"POOL.200.0/23", "lan0", "another pool"}}},
	}
}

// explained returns faults of this host that make a peer silent, or look like that. Nothing else is reported.
func explained() []fault {
	return []fault{
		{"a routing rule takes packets to other hosts", on(0, "ip link add ts0 type veth peer name ts1; ip link set ts0 up; ip link set ts1 up; ip route add POOL.0.0/16 dev ts0 table 52; ip rule add pref 5270 lookup 52"),
			ended("ip rule del pref 5270; ip rule del pref 5269; ip link del ts0"),
			want{check: "routes", network: "NETWORK", shown: "routes", path: api.PathLost, words: []string{"of HOST1 leave by ts0", "a routing rule that is not leno's takes precedence, 5270: from all lookup 52", "`ip rule add to POOL.0.0/16 lookup main priority 5269`"}}},
		// As wg-quick does for AllowedIPs = 0.0.0.0/0. The peer is behind a router, so its address has no route but the default one.
		{"a routing rule takes packets to other hosts", both(
			on(-1, "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.br0.send_redirects=0"),
			on(0, "ip route add 192.0.2.1 dev eth0; ip route add 192.0.2.254 dev eth0; ip route del 192.0.2.0/24 dev eth0;"+
				"ip tuntap add wg1 mode tun; ip link set wg1 up; ip route add default dev wg1 table 51820;"+
				"ip rule add pref 32765 not fwmark 0xca6c lookup 51820; ip rule add pref 32764 lookup main suppress_prefixlength 0")),
			ended("ip rule del pref 32764; ip rule del pref 32764; ip rule del pref 32765; ip link del wg1;" +
				"ip route add 192.0.2.0/24 dev eth0 src ADDR0; ip route del 192.0.2.1; ip route del 192.0.2.254"),
			want{check: "routes", network: "NETWORK", shown: "routes", path: api.PathLost, words: []string{"packets to ADDR1 of HOST1 leave by wg1",
				"32765: not from all fwmark 0xca6c lookup 51820", "`ip rule add to ADDR1 lookup main priority 32764`"}}},
		{"a route of another program to a peer", on(0, "ip link add lan0 type bridge; ip link set lan0 up; ip route add $(sed -n 's/^LENO_SUBNET=\\(.*\\)\\.1\\/.*/\\1.0/p' DIR1/NETWORK.env)/25 dev lan0"), ended("ip link del lan0"),
			want{check: "overlap", network: "NETWORK", peer: "HOST1", also: []string{"routes"}, shown: "routes", path: api.PathLost, words: []string{"where HOST1 has its subnet", "ip route del POOL."}}},
		{"a route of another program to a peer", on(0, "ip route add blackhole $(sed -n 's/^LENO_SUBNET=\\(.*\\)\\.1\\/.*/\\1.0/p' DIR1/NETWORK.env)/25"), typed(0),
			want{check: "overlap", network: "NETWORK", peer: "HOST1", also: []string{"routes"}, shown: "routes", path: api.PathLost, words: []string{"the route blackhole POOL.", "where HOST1 has its subnet", "`ip route del blackhole POOL."}}},
		{"a rule drops packets of the network for this host itself", on(0, "iptables-nft -N ts-input; iptables-nft -A ts-input -s POOL.0.0/16 ! -i tailscale0 -j DROP; iptables-nft -I INPUT 1 -j ts-input"),
			on(0, "iptables-nft -D INPUT -j ts-input; iptables-nft -F ts-input; iptables-nft -X ts-input"),
			want{check: "rules", network: "NETWORK", shown: "foreign_rules", path: api.PathLost, words: []string{"chain ts-input", "drops packets from POOL.0.0/16 for this host itself", "--netfilter-mode=nodivert"}}},
		{"a rule drops the answers to test packets", on(0, "iptables-nft -A INPUT -p icmp -j DROP"), typed(0),
			want{check: "rules", warning: true, network: "NETWORK", whyPassing: "the peer's agent answers", words: []string{"chain INPUT", "-p icmp -j DROP", "drops the answers to echo requests of this host"}}},
	}
}
