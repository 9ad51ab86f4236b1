package foreign

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lenonet/leno/agent/firewall/netfilter"
	"github.com/lenonet/leno/internal/testkit/firewalltest"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

func TestMain(m *testing.M) {
	nstest.RunMoreAtOnce()
	m.Run()
}

// findIn returns the result of a new Reader in the namespace.
func findIn(t *testing.T, ns *nstest.NS, c OverlayPath) []Obstacle {
	t.Helper()
	var out []Obstacle
	ns.Do(func() {
		var err error
		if out, err = NewReader().Obstacles(t.Context(), []OverlayPath{c}); err != nil {
			t.Error(err)
		}
	})
	return out
}

// findInKernel returns what is found in the tables of nf_tables without any program.
func findInKernel(t *testing.T, ns *nstest.NS, c OverlayPath) (out []Obstacle) {
	t.Helper()
	ns.Do(func() {
		listing, err := listKernel(t.Context())
		if err != nil {
			t.Error(err)
		}
		bridges, err := readBridges([]OverlayPath{c})
		if err != nil {
			t.Error(err)
		}
		out = findObstacles(listing.bases(func(string, string) bool { return false }), []OverlayPath{c}, bridges)
	})
	return out
}

// countedPackets returns the sum of the counters in a listing of the namespace.
func countedPackets(t *testing.T, ns *nstest.NS, list func(context.Context) (nftListing, error)) (sum uint64) {
	t.Helper()
	ns.Do(func() {
		listing, err := list(t.Context())
		if err != nil {
			t.Error(err)
		}
		for _, b := range listing.bases(func(string, string) bool { return false }) {
			for _, l := range slices.Concat(slices.Collect(maps.Values(b.lines))...) {
				if l.packets != nil {
					sum += *l.packets
				}
			}
		}
	})
	return sum
}

func addDocker0(ns *nstest.NS) {
	ns.Sh(`ip link add docker0 type bridge
		ip addr add 10.5.34.1/24 dev docker0
		ip -6 addr add fd00:5:0:22::1/64 dev docker0 nodad
		ip link set docker0 up
		ip link add leno-default type vxlan id 1 dstport 8472
		ip addr add 10.5.34.0/32 dev leno-default`)
}

// nftDocker holds the rules that Docker 29 writes with --firewall-backend=nftables for docker0 with a container that
// publishes port 80 (moby: internal/nftabler/testdata/TestNftabler).
const nftDocker = `table FAMILY docker-bridges {
	map filter-forward-in-jumps {
		type ifname : verdict
		elements = { "docker0" : jump filter-forward-in__docker0 }
	}
	map filter-forward-out-jumps {
		type ifname : verdict
		elements = { "docker0" : jump filter-forward-out__docker0 }
	}
	map nat-postrouting-out-jumps {
		type ifname : verdict
		elements = { "docker0" : jump nat-postrouting-out__docker0 }
	}
	chain filter-FORWARD {
		type filter hook forward priority filter; policy accept;
		oifname vmap @filter-forward-in-jumps
		iifname vmap @filter-forward-out-jumps
	}
	chain nat-POSTROUTING {
		type nat hook postrouting priority srcnat; policy accept;
		iifname vmap @nat-postrouting-out-jumps
	}
	chain raw-PREROUTING {
		type filter hook prerouting priority raw; policy accept;
		FAMILY daddr CONTAINER iifname != { "docker0" TRUSTED } counter drop comment "DROP DIRECT ACCESS"
	}
	chain filter-forward-in__docker0 {
		ct state established,related counter accept
		iifname "docker0" counter accept comment "ICC"
		FAMILY daddr CONTAINER tcp dport 80 counter accept
		counter drop comment "UNPUBLISHED PORT DROP"
	}
	chain filter-forward-out__docker0 {
		ct state established,related counter accept
		counter accept comment "OUTGOING"
	}
	chain nat-postrouting-out__docker0 {
		oifname != "docker0" FAMILY saddr SUBNET counter masquerade comment "MASQUERADE"
	}
}
`

func docker29(v6 bool, trusted string) string {
	words := []string{"FAMILY", "ip", "CONTAINER", "10.5.34.2", "SUBNET", "10.5.34.0/24"}
	if v6 {
		words = []string{"FAMILY", "ip6", "CONTAINER", "fd00:5:0:22::2", "SUBNET", "fd00:5:0:22::/64"}
	}
	return strings.NewReplacer(append(words, "TRUSTED", trusted)...).Replace(nftDocker)
}

// firewalld is a rule set with the layout of firewalld's: one base chain that rejects what no zone accepted. What is in
// ZONES differs.
const firewalld = `table inet firewalld {
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002::/24 } reject with icmpv6 type addr-unreachable
		jump filter_FORWARD_ZONES
		reject with icmpx type admin-prohibited
	}
	chain filter_FORWARD_ZONES {
		ZONES
	}
	chain filter_FWD_docker {
		accept
	}
	chain filter_FWD_public_allow {
	}
	chain filter_FWD_public {
		jump filter_FWD_public_allow
		reject with icmpx type admin-prohibited
	}
	chain filter_FWD_trusted {
		accept
	}
}
`

func TestObstaclesOfNFTables(t *testing.T) {
	t.Parallel()
	const (
		direct   = `nftables table ip docker-bridges chain raw-PREROUTING: ip daddr 10.5.34.2 iifname != "docker0" drop comment "DROP DIRECT ACCESS"`
		inbound  = `nftables table ip docker-bridges chain filter-forward-in__docker0: drop comment "UNPUBLISHED PORT DROP"`
		outbound = `nftables table ip docker-bridges chain nat-postrouting-out__docker0: oifname != "docker0" ip saddr 10.5.34.0/24 masquerade comment "MASQUERADE"`
	)
	chain := func(rules string) string {
		return "table inet x {\nset peers { type ipv4_addr; flags interval; elements = { 10.5.77.0/24, 192.0.2.1 } }\n" +
			"chain forward { type filter hook forward priority 0; policy drop;\n" + rules + "\n} }\n"
	}
	open := func(rules string) string { return strings.ReplaceAll(rules, "policy drop", "policy accept") }
	zones := func(rules string) string { return strings.Replace(firewalld, "\t\tZONES\n", rules+"\n", 1) }
	const policy4 = "nftables table inet x chain forward: policy drop"
	for _, tt := range []struct {
		name, rules string
		want        []string
		kernel      []string // without the program nft, if that differs
		advice      string
		packets     uint64 // of the counters
	}{
		{name: "nothing"},
		{name: "Docker", rules: docker29(false, ""), want: []string{direct, inbound, outbound}, advice: "--allow-direct-routing"},
		{name: "Docker, IPv6", rules: docker29(true, ""), want: []string{
			strings.NewReplacer("ip docker", "ip6 docker", "ip daddr 10.5.34.2", "ip6 daddr fd00:5:0:22::2").Replace(direct),
			strings.ReplaceAll(inbound, "ip docker", "ip6 docker"),
			strings.NewReplacer("ip docker", "ip6 docker", "ip saddr 10.5.34.0/24", "ip6 saddr fd00:5:0:22::/64").Replace(outbound)}},
		{name: "Docker that trusts our device", rules: docker29(false, `, "leno-default"`), want: []string{inbound, outbound}, advice: "gateway_mode_ipv4=nat-unprotected"},
		{name: "firewalld, the default zone", rules: zones("goto filter_FWD_public"),
			want: []string{"nftables table inet firewalld chain filter_FWD_public: reject"}, advice: "`firewall-cmd --permanent --zone=trusted --add-source=10.5.0.0/16 --add-source=fd00:5::/48 && firewall-cmd --reload`"},
		{name: "firewalld, with Docker's zone", rules: zones("iifname \"docker0\" goto filter_FWD_docker\ngoto filter_FWD_public"),
			want: []string{"nftables table inet firewalld chain filter_FWD_public: reject"}},
		{name: "firewalld, with Docker's zone and a trusted device", rules: zones("iifname \"docker0\" goto filter_FWD_docker\niifname \"leno-default\" goto filter_FWD_trusted\ngoto filter_FWD_public")},
		{name: "firewalld", rules: zones("return"),
			want: []string{"nftables table inet firewalld chain filter_FORWARD: reject"}, advice: "firewall-cmd --permanent --zone=trusted --add-source=10.5.0.0/16 --add-source=fd00:5::/48"},
		{name: "firewalld that trusts the pools", rules: zones("ip saddr 10.5.0.0/16 goto filter_FWD_trusted\nip6 saddr fd00:5::/48 goto filter_FWD_trusted\ngoto filter_FWD_public")},
		{name: "policy", rules: chain(""), want: []string{policy4}, advice: "accept packets from and to 10.5.0.0/16 and fd00:5::/48 there"},
		{name: "policy, accepted by address", rules: chain("ip saddr 10.5.0.0/16 accept\nip6 saddr fd00:5::/48 accept")},
		{name: "policy, accepted by family", rules: chain("meta nfproto ipv4 accept\nmeta protocol ip6 accept")},
		{name: "policy, IPv6 alone accepted", rules: chain("meta nfproto ipv6 accept"), want: []string{policy4}},
		{name: "policy, accepted by device", rules: chain(`iifname "leno-*" accept` + "\n" + `oifname { "eth9", "leno-default" } accept`)},
		{name: "policy, accepted by index", rules: chain("iif leno-default accept\noif leno-default accept")},
		{name: "policy, perhaps accepted", rules: chain("meta mark 1 accept")},
		{name: "policy, accepted slowly", rules: chain("limit rate 5/second accept")},
		{name: "policy, a protocol accepted", rules: chain("meta l4proto tcp accept\ntcp dport 22 accept\nicmp type echo-request accept"), want: []string{policy4}},
		{name: "policy, states by set", rules: chain("ct state { established, new } accept")},
		{name: "policy, states by map", rules: chain("ct state vmap { established : accept, related : accept, new : accept }")},
		{name: "a set", rules: strings.ReplaceAll(chain("ip saddr @peers drop"), "policy drop", "policy accept"), want: []string{"nftables table inet x chain forward: ip saddr { 10.5.77.0/24, 192.0.2.1 } drop"}},
		{name: "a counter", rules: open(chain("ip saddr 10.5.0.0/16 counter packets 7 bytes 588 drop")), want: []string{"nftables table inet x chain forward: ip saddr 10.5.0.0/16 drop"}, packets: 7},
		{name: "a port", rules: open(chain("ip daddr 10.5.34.0/24 tcp dport 80 drop")), want: []string{"nftables table inet x chain forward: ip daddr 10.5.34.0/24 tcp dport 80 drop (part)"},
			advice: "it may be intended; if not, remove it, or: accept packets from and to 10.5.0.0/16 and fd00:5::/48 there, before that rule"},
		{name: "several ports", rules: open(chain("tcp dport { 25, 1000-2000 } counter reject")), want: []string{"nftables table inet x chain forward: tcp dport { 25, 1000-2000 } reject (part)"}},
		{name: "all ports but one", rules: open(chain("tcp dport != 80 drop")), want: []string{"nftables table inet x chain forward: tcp dport != 80 drop (part)"}},
		{name: "all protocols but one", rules: open(chain("meta l4proto != tcp drop")), want: []string{"nftables table inet x chain forward: meta l4proto != tcp drop (part)"}},
		{name: "two containers", rules: open(chain("ip daddr { 10.5.34.2, 10.5.34.9 } drop")), want: []string{"nftables table inet x chain forward: ip daddr { 10.5.34.2, 10.5.34.9 } drop (part)"}},
		{name: "new connections to a port", rules: open(chain("tcp flags syn tcp dport 80 drop")), want: []string{"nftables table inet x chain forward: tcp flags syn tcp dport 80 drop (part)"}, kernel: []string{}},
		{name: "pings", rules: open(chain("icmp type echo-request drop")), want: []string{"nftables table inet x chain forward: icmp type echo-request drop (part)"},
			kernel: []string{"nftables table inet x chain forward: meta nfproto ipv4 icmp type 8 drop (part)"}},
		{name: "a port in a chain for its protocol", rules: "table inet x {\nchain web { tcp dport 80 drop\n}\nchain forward { type filter hook forward priority 0;\nip protocol tcp jump web\n} }\n",
			want: []string{"nftables table inet x chain web: tcp dport 80 drop (part)"}},
		{name: "a port that was accepted", rules: open(chain("tcp dport 1-1024 accept\ntcp dport 80 drop"))},
		{name: "a port by a map", rules: open(chain("tcp dport vmap { 22 : accept, 80 : drop }")), want: []string{"nftables table inet x chain forward: tcp dport 80 drop (part)"},
			kernel: []string{"nftables table inet x chain forward: meta l4proto tcp tcp dport 80 drop (part)"}},
		{name: "not a range of addresses", rules: open(chain("ip saddr != 10.0.0.0/8 drop\nip6 saddr != fd00:5::/48 drop"))},
		{name: "one address of a pair", rules: open(chain("ip saddr 10.5.77.2 ip daddr 10.5.34.9 drop")), want: []string{"nftables table inet x chain forward: ip saddr 10.5.77.2 ip daddr 10.5.34.9 drop (part)"}},
		{name: "ranges of a set", rules: open(chain("ip saddr { 10.5.0.0/17, 10.5.128.0/17, 255.0.0.0/8 } drop")), want: []string{"nftables table inet x chain forward: ip saddr { 10.5.0.0/16, 255.0.0.0/8 } drop"}},
		{name: "what is no connection, and ICMP that is not needed", rules: open(chain("ct state invalid drop\ntcp flags & (fin | syn) == (fin | syn) drop\ntcp flags != syn ct state new drop\nicmp type { redirect, timestamp-request } drop"))},
		{name: "too much of a port", rules: open(chain("tcp dport 80 limit rate over 100/second drop"))},
		{name: "too much of an address", rules: "table inet x {\nset many { type ipv4_addr; flags dynamic; }\n" +
			"chain forward { type filter hook forward priority 0;\nct state new add @many { ip saddr limit rate over 100/second } drop\n} }\n"},
		{name: "fail2ban", rules: "table inet f2b-table {\nset addr-set-sshd { type ipv4_addr; elements = { 203.0.113.5 } }\nchain f2b-chain { type filter hook input priority filter - 1; policy accept;\ntcp dport 22 ip saddr @addr-set-sshd reject\n} }\n"},
		{name: "other families and hooks", rules: "table bridge x { chain f { type filter hook forward priority 0; policy drop; } }\n" +
			"table inet y { chain f { type filter hook input priority 0; policy drop; } chain o { type filter hook output priority 0; policy drop; } }\n"},
		{name: "another tunnel's range, for the host itself", rules: "table inet x {\nchain i { type filter hook input priority 0; policy drop;\nip saddr 10.0.0.0/8 iifname != \"wt0\" drop\nudp dport 53 accept\n} }\n",
			want: []string{`nftables table inet x chain i: ip saddr 10.0.0.0/8 iifname != "wt0" drop`}, advice: "accept packets from 10.5.0.0/16 and fd00:5::/48 there, before that rule"},
		{name: "our own exemption", rules: docker29(false, `, "leno-default"`) + "table inet leno { chain exempt { type nat hook postrouting priority srcnat - 1; ip saddr 10.5.34.0/24 ip daddr 10.5.0.0/16 snat ip to ip saddr } }\n",
			want: []string{inbound}},
		{name: "our own masquerading", rules: "table inet leno { chain m { type nat hook postrouting priority srcnat; ip saddr 10.5.34.0/24 masquerade } }\n"},
		{name: "an accept of ours does not count in their chain", rules: chain("") + "table inet leno { chain f { type filter hook forward priority -1; accept } }\n", want: []string{policy4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			addDocker0(ns)
			if tt.rules != "" {
				// nft requires each closing brace of a block on a separate line.
				ns.Sh("nft -f - <<'END'\n" + strings.NewReplacer(" } }\n", "\n}\n}\n", "; } chain", ";\n}\nchain", "\n} }", "\n}\n}").Replace(tt.rules) + "END")
			}
			got := findIn(t, ns, overlayPath(true, true))
			if diff := cmp.Diff(tt.want, places(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if tt.kernel == nil {
				tt.kernel = tt.want
			}
			got = findInKernel(t, ns, overlayPath(true, true))
			if diff := cmp.Diff(tt.kernel, places(got), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("without the program nft (-want +got):\n%s", diff)
			}
			for name, list := range map[string]func(context.Context) (nftListing, error){"with": listNFTables, "without": listKernel} {
				if n := countedPackets(t, ns, list); tt.packets > 0 && n != tt.packets {
					t.Errorf("%s the program nft: %d packets, want %d", name, n, tt.packets)
				}
			}
			if tt.advice != "" && (len(got) == 0 || !strings.Contains(got[0].Advice, tt.advice)) {
				t.Errorf("%q is missing in %v", tt.advice, got)
			}
		})
	}
}

// The rules of each variant of iptables are found as they are in the kernel, and only once.
func TestObstaclesInTheKernel(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			addDocker0(ns)
			load := func(command, text string) {
				ns.Sh(command + "-" + variant + "-restore <<'END'\n" + text + "END")
			}
			load("iptables", docker28)
			load("ip6tables", strings.NewReplacer("10.5.34.2/32", "fd00:5:0:22::2/128", "10.5.34.0/24", "fd00:5:0:22::/64", "10.5.34.2:80", "[fd00:5:0:22::2]:80").Replace(docker28))
			want := []string{
				"raw chain PREROUTING: -d 10.5.34.2/32 ! -i docker0 -j DROP",
				"filter chain DOCKER: ! -i docker0 -o docker0 -j DROP",
				"nat chain POSTROUTING: -s 10.5.34.0/24 ! -o docker0 -j MASQUERADE",
				"raw chain PREROUTING: -d fd00:5:0:22::2/128 ! -i docker0 -j DROP",
				"filter chain DOCKER: ! -i docker0 -o docker0 -j DROP",
				"nat chain POSTROUTING: -s fd00:5:0:22::/64 ! -o docker0 -j MASQUERADE",
			}
			got := places(findIn(t, ns, overlayPath(true, true)))
			for i, text := range got {
				_, got[i], _ = strings.Cut(strings.Replace(text, "iptables table", "", 1), " table ")
				if got[i] == "" {
					got[i] = strings.TrimPrefix(text, "iptables-"+variant+" table ")
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s\nwhole: %q", diff, places(findIn(t, ns, overlayPath(true, true))))
			}
		})
	}
}

// A rule that drops a port before our jump is found in each variant of iptables.
func TestPartialObstaclesInTheKernel(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			addDocker0(ns)
			command := "iptables-" + variant
			ns.Sh(command + " -N LENO-FORWARD; " + command + " -A LENO-FORWARD -s 10.5.0.0/16 -j ACCEPT; " + command + " -A LENO-FORWARD -d 10.5.0.0/16 -j ACCEPT; " + command + " -A FORWARD -j LENO-FORWARD; " +
				command + " -A FORWARD -p tcp --dport 443 -j DROP; " + command + " -I FORWARD 1 -p tcp -d 10.5.34.0/24 --dport 80 -j DROP")
			got := findIn(t, ns, overlayPath(true, true))
			if len(got) != 1 || !got[0].Partial || got[0].Rule != "-d 10.5.34.0/24 -p tcp -m tcp --dport 80 -j DROP" || !strings.HasSuffix(got[0].Where, command+" table filter chain FORWARD") {
				t.Errorf("%+v", got)
			}
		})
	}
}

func FuzzObstaclesOfNFTables(f *testing.F) {
	f.Add([]byte(`{"nftables":[{"metainfo":{}},{"map":{"family":"ip","table":"t","name":"m","elem":[["docker0",{"jump":{"target":"c"}}]]}},
		{"chain":{"family":"ip","table":"t","name":"b","type":"filter","hook":"forward","prio":0,"policy":"drop"}},
		{"rule":{"family":"ip","table":"t","chain":"b","comment":"x","expr":[{"vmap":{"key":{"meta":{"key":"oifname"}},"data":"@m"}}]}},
		{"rule":{"family":"ip","table":"t","chain":"c","expr":[{"match":{"op":"!=","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":{"prefix":{"addr":"10.0.0.0","len":8}}}},{"drop":null}]}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		listing, err := parseListing(text)
		if err == nil {
			findObstacles(listing.bases(func(string, string) bool { return false }), []OverlayPath{overlayPath(true, true)}, bridges("docker0"))
		}
	})
}

func FuzzObstaclesOfIPTables(f *testing.F) {
	f.Add(docker28)
	f.Fuzz(func(t *testing.T, text string) {
		if tables, err := netfilter.ParseSave(text); err == nil {
			findObstacles(iptablesBases("iptables", false, tables), []OverlayPath{overlayPath(true, true)}, bridges("docker0"))
		}
	})
}

// An agent whose rules are not in iptables-legacy has no right to list its tables,
// and needs none.
func TestObstaclesWithoutRights(t *testing.T) {
	ns, s := nstest.New(t), firewalltest.NewPrograms(t)
	const refused = "echo 'Failed to list table names in /proc/net/ip_tables_names: Permission denied' >&2; exit 1"
	for _, step := range []struct {
		program string
		silent  bool
	}{{"iptables-legacy-save", true}, {"ip6tables-legacy-save", true}, {"iptables-nft-save", false}} {
		s.Script(step.program, refused)
		s.Script(strings.TrimSuffix(step.program, "-save"), "exit 1") // the other program is found by its name
		var err error
		ns.Do(func() { _, err = NewReader().Obstacles(t.Context(), nil) })
		if (err == nil) != step.silent {
			t.Errorf("%s: %v", step.program, err)
		}
	}
}

// TestReader checks that rules are read again after each change, of either kind and of the bridges, and not without
// one: the programs that list them are counted.
func TestReader(t *testing.T) {
	ns, s, r := nstest.New(t), firewalltest.NewPrograms(t), NewReader()
	log := filepath.Join(s.Dir, "log")
	for name, before := range map[string]string{"iptables-nft": "", "iptables-nft-save": "echo x >> " + log + "; "} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		s.Script(name, before+"exec "+program+` "$@"`)
	}
	addDocker0(ns)
	read := 0
	// look returns the obstacles, and how often the rules were read for them.
	look := func() (rules string, readings int) {
		t.Helper()
		var found []Obstacle
		ns.Do(func() {
			var err error
			if found, err = r.Obstacles(t.Context(), []OverlayPath{overlayPath(true, true)}); err != nil {
				t.Error(err)
			}
		})
		data, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { read = len(data) }()
		for _, o := range found {
			rules += o.Rule + "; "
		}
		return rules, (len(data) - read) / 2
	}
	for _, step := range []struct{ script, want string }{
		{"true", ""},
		{"iptables-nft -A FORWARD -i leno-default -j DROP", "-i leno-default -j DROP; "},
		{"iptables-nft -F FORWARD", ""},
		{"iptables-legacy -A FORWARD -o leno-default -j DROP", "-o leno-default -j DROP; "},
		{"iptables-legacy -F FORWARD", ""},
		{"nft add table ip x; nft 'add chain ip x c { type filter hook forward priority 0; policy drop; }'", "policy DROP; "},
		{"nft delete table ip x", ""},
		{"ip link set docker0 name docker9", ""},
	} {
		ns.Sh(step.script)
		for _, readings := range []int{1, 0, 0} {
			got, n := look()
			if n != readings || (step.want == "") != (got == "") {
				t.Errorf("%s: %d readings found %q, want %d and %q", step.script, n, got, readings, step.want)
			}
		}
	}
}

// TestUnreadableTable: a table that iptables-nft cannot show is read with nft, and without nft from the kernel.
func TestUnreadableTable(t *testing.T) {
	ns := nstest.New(t)
	addDocker0(ns)
	ns.Sh(`iptables-nft -A FORWARD -m comment --comment theirs -j DROP
		nft insert rule ip filter FORWARD ct state vmap { established : accept, related : accept }`)
	find := func() {
		t.Helper()
		if got := findIn(t, ns, overlayPath(true, true)); len(got) == 0 || !strings.Contains(got[0].Where, "ip filter") {
			t.Errorf("it finds %v", got)
		}
	}
	find()
	dir := t.TempDir()
	for _, name := range []string{"iptables-nft", "iptables-nft-save"} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(program, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	find()
}
