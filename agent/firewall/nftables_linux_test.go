package firewall

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/firewall/netfilter"
	"github.com/lenonet/leno/internal/testkit/firewalltest"
	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/internal/testkit/seed"
)

// nftApply applies rules as a newly started process does, and returns the number of transactions in this network
// namespace.
func nftApply(t *testing.T, ns *nstest.NS, want rules) (transactions uint32) {
	t.Helper()
	before := nftGeneration(t, ns)
	ns.Do(func() {
		if _, err := newNFTables(hclog.NewNullLogger()).apply(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	})
	return nftGeneration(t, ns) - before
}

func nftGeneration(t *testing.T, ns *nstest.NS) (generation uint32) {
	t.Helper()
	ns.Do(func() {
		conn, err := netfilter.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.CloseLasting()
		if generation, err = conn.Generation(); err != nil {
			t.Fatal(err)
		}
	})
	return generation
}

// nftForeign holds rules of another program, with names similar to ours.
const nftForeign = `
	table ip leno { chain forward { type filter hook forward priority filter; policy drop; ip saddr 10.5.0.0/16 accept comment "leno default"; }; }
	table ip6 leno { set s { type ipv6_addr; elements = { fd00::1 }; }; }
	table inet leno2 { chain postrouting { type nat hook postrouting priority srcnat; ip saddr 10.9.0.0/16 masquerade; }; }
	table bridge b { chain f { type filter hook forward priority 0; policy drop; }; }
	table netdev n { }`

func TestNFTApply(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	firewalltest.Load(t, ns, nftForeign)
	list := func() string { return ns.Sh("nft list ruleset") }
	expect := func(name string, want rules, transactions uint32) string {
		t.Helper()
		if got := nftApply(t, ns, want); got != transactions {
			t.Errorf("%s: %d transactions, want %d", name, got, transactions)
		}
		if got := nftApply(t, ns, want); got != 0 {
			t.Errorf("%s, once more: %d transactions, want none", name, got)
		}
		return list()
	}
	before := list()
	if diff := cmp.Diff(before, expect("nothing", rules{}, 0)); diff != "" {
		t.Errorf("wanting nothing changed something:\n%s", diff)
	}

	full := expect("two networks", random(two()), 1)
	const ours = `table inet leno {
	chain overlay {
		type nat hook postrouting priority srcnat - 10; policy accept;
		ip saddr 10.5.34.0/24 ip daddr 10.5.34.0/24 return comment "leno default"
		ip saddr 10.5.34.0/24 ip daddr 10.5.0.0/16 snat ip to ip saddr comment "leno default"
		ip6 saddr fd00:5:0:22::/64 ip6 daddr fd00:5:0:22::/64 return comment "leno default"
		ip6 saddr fd00:5:0:22::/64 ip6 daddr fd00:5::/48 snat ip6 to ip6 saddr comment "leno default"
		ip saddr 10.6.1.0/24 ip daddr 10.6.1.0/24 return comment "leno b-2.x"
		ip saddr 10.6.1.0/24 ip daddr 10.6.0.0/16 snat ip to ip saddr comment "leno b-2.x"
	}

	chain postrouting {
		type nat hook postrouting priority srcnat + 10; policy accept;
		ip saddr 10.5.34.0/24 ip daddr 10.5.0.0/16 return comment "leno default"
		ip saddr 10.5.34.0/24 ip daddr 224.0.0.0/4 return comment "leno default"
		ip saddr 10.5.34.0/24 ip daddr 255.255.255.255 return comment "leno default"
		ip saddr 10.5.34.0/24 masquerade fully-random comment "leno default"
		ip6 saddr fd00:5:0:22::/64 ip6 daddr fd00:5::/48 return comment "leno default"
		ip6 saddr fd00:5:0:22::/64 ip6 daddr ff00::/8 return comment "leno default"
		ip6 saddr fd00:5:0:22::/64 ip6 daddr fe80::/10 return comment "leno default"
		ip6 saddr fd00:5:0:22::/64 masquerade fully-random comment "leno default"
		ip saddr 10.6.1.0/24 ip daddr 10.6.0.0/16 return comment "leno b-2.x"
		ip saddr 10.6.1.0/24 ip daddr 224.0.0.0/4 return comment "leno b-2.x"
		ip saddr 10.6.1.0/24 ip daddr 255.255.255.255 return comment "leno b-2.x"
		ip saddr 10.6.1.0/24 masquerade fully-random comment "leno b-2.x"
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		ip saddr 10.5.0.0/16 accept comment "leno default"
		ip daddr 10.5.0.0/16 iifname "leno-default" accept comment "leno default"
		ip daddr 10.5.0.0/16 iifname "leno-default~b" accept comment "leno default"
		ip daddr 10.5.0.0/16 ct state established,related accept comment "leno default"
		ip daddr 10.5.0.0/16 ct status dnat accept comment "leno default"
		ip6 saddr fd00:5::/48 accept comment "leno default"
		ip6 daddr fd00:5::/48 iifname "leno-default" accept comment "leno default"
		ip6 daddr fd00:5::/48 iifname "leno-default~b" accept comment "leno default"
		ip6 daddr fd00:5::/48 ct state established,related accept comment "leno default"
		ip6 daddr fd00:5::/48 ct status dnat accept comment "leno default"
		ip saddr 10.6.0.0/16 accept comment "leno b-2.x"
		ip daddr 10.6.0.0/16 ct state established,related accept comment "leno b-2.x"
		ip daddr 10.6.0.0/16 ct status dnat accept comment "leno b-2.x"
	}
}
`
	if diff := cmp.Diff(before+ours, full); diff != "" {
		t.Errorf("two networks (-want +got):\n%s", diff)
	}
	// A rule set that the program nft saved and loaded again is still right.
	firewalltest.Load(t, ns, "flush ruleset\n"+full)
	expect("saved and loaded", random(two()), 0)

	plain := expect("ports as they come", desiredRules(State{Networks: two()}), 1)
	if diff := cmp.Diff(strings.ReplaceAll(full, "masquerade fully-random", "masquerade"), plain); diff != "" {
		t.Errorf("ports as they come (-want +got):\n%s", diff)
	}

	networks := two()
	networks[0].IPMasq = false
	one := expect("a change", random(networks), 1)
	if strings.Contains(one, "10.5.34.0/24") || !strings.Contains(one, "10.6.1.0/24") || strings.Contains(one, "fd00:5:0:22::/64") {
		t.Errorf("a change left\n%s", one)
	}
	networks[1].IPMasq = false
	if got := expect("no masquerading", random(networks), 1); strings.Contains(got, "srcnat + 10") {
		t.Errorf("a chain that tracks connections is left:\n%s", got)
	}
	if diff := cmp.Diff(nftSorted(ours), nftSorted(strings.TrimPrefix(expect("and back", random(two()), 1), before))); diff != "" {
		t.Errorf("there and back differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, expect("removal", rules{}, 1)); diff != "" {
		t.Errorf("removal left a difference:\n%s", diff)
	}
}

func TestNFTHeals(t *testing.T) {
	t.Parallel()
	const rule = "ip saddr 10.5.34.0/24 ip daddr 10.5.0.0/16 return comment \"leno default\""
	replace := func(with string) string {
		return `h=$(nft -a list chain inet leno postrouting | sed -n 's/.*10\.5\.0\.0\/16 return.*handle //p')
			nft "replace rule inet leno postrouting handle $h ` + strings.ReplaceAll(with, `"`, `\"`) + `"`
	}
	for _, tt := range []struct {
		name, script string
		transactions uint32
	}{
		{"ruleset flushed", "nft flush ruleset", 1},
		{"table deleted", "nft delete table inet leno", 1},
		{"table flushed", "nft flush table inet leno", 1},
		{"chain flushed", "nft flush chain inet leno forward", 1},
		{"chain deleted", "nft flush chain inet leno postrouting; nft delete chain inet leno postrouting", 1},
		{"rule added", "nft insert rule inet leno forward ip saddr 10.5.3.0/24 drop", 1},
		{"rule deleted", `nft delete rule inet leno postrouting handle $(nft -a list chain inet leno postrouting | sed -n 's/.*10\.6\.1\.0.*masq.*handle //p')`, 1},
		{"order changed", `h=$(nft -a list chain inet leno postrouting | sed -n 's/.*10\.5\.0\.0\/16 return.*handle //p')
			nft "delete rule inet leno postrouting handle $h; add rule inet leno postrouting ` + strings.ReplaceAll(rule, `"`, `\"`) + `"`, 1},
		{"rule replaced by the same", replace(rule), 0},
		{"rule replaced, verdict", replace(strings.Replace(rule, "return", "accept", 1)), 1},
		{"rule replaced, no verdict", replace(strings.Replace(rule, "return", "", 1)), 1},
		{"rule replaced, prefix", replace(strings.Replace(rule, "10.5.0.0/16", "10.5.0.0/17", 1)), 1},
		{"rule replaced, other side", replace(strings.Replace(rule, "daddr 10.5.0.0/16", "daddr != 10.5.0.0/16", 1)), 1},
		{"rule replaced, one condition more", replace("oifname \"eth7\" " + rule), 1},
		{"rule replaced, counted", replace("ip saddr 10.5.34.0/24 counter ip daddr 10.5.0.0/16 return comment \"leno default\""), 1},
		{"rule replaced, for a while", replace(strings.Replace(rule, "return", "quota 10 mbytes return", 1)), 1},
		{"rule replaced, traced", replace(strings.Replace(rule, "return", "meta nftrace set 1 return", 1)), 1},
		{"rule replaced, comment alone", replace(strings.Replace(rule, "leno default", "leno defaul7", 1)), 1},
		{"rule replaced, no comment", replace("ip saddr 10.5.34.0/24 ip daddr 10.5.0.0/16 return"), 1},
		{"ports not random", `h=$(nft -a list chain inet leno postrouting | sed -n 's/.*10\.5\.34.*masq.*handle //p')
			nft "replace rule inet leno postrouting handle $h ip saddr 10.5.34.0/24 masquerade comment \"leno default\""`, 1},
		{"ports less random", `h=$(nft -a list chain inet leno postrouting | sed -n 's/.*10\.5\.34.*masq.*handle //p')
			nft "replace rule inet leno postrouting handle $h ip saddr 10.5.34.0/24 masquerade random comment \"leno default\""`, 1},
		{"another source instead of the same", `h=$(nft -a list chain inet leno overlay | sed -n 's/.*snat ip6.*handle //p')
			nft "replace rule inet leno overlay handle $h ip6 saddr fd00:5:0:22::/64 ip6 daddr fd00:5::/48 snat ip6 to ip6 daddr comment \"leno default\""`, 1},
		{"another source, random port", `h=$(nft -a list chain inet leno overlay | sed -n 's/.*10.5.*snat.*handle //p')
			nft "replace rule inet leno overlay handle $h ip saddr 10.5.34.0/24 ip daddr 10.5.0.0/16 snat ip to ip saddr fully-random comment \"leno default\""`, 1},
		{"policy changed", "nft 'add chain inet leno forward { type filter hook forward priority filter; policy drop; }'", 1},
		{"another priority", "nft 'delete table inet leno; add table inet leno; add chain inet leno forward { type filter hook forward priority 5; }'", 1},
		{"another hook", "nft 'delete table inet leno; add table inet leno; add chain inet leno forward { type filter hook input priority 0; }'", 1},
		{"no hook", "nft 'delete table inet leno; add table inet leno; add chain inet leno forward; add chain inet leno postrouting'", 1},
		{"asleep", "nft 'add table inet leno { flags dormant; }'", 1},
		{"chains of others in our table", `nft 'add chain inet leno x; add chain inet leno y; add rule inet leno x jump y; add rule inet leno forward jump x
			add chain inet leno z { type filter hook prerouting priority 0; policy accept; }; add rule inet leno z jump y'`, 2},
		{"chains of an older version", `nft 'delete table inet leno; add table inet leno; add chain inet leno MASQ { type nat hook postrouting priority srcnat; }
			add rule inet leno MASQ ip saddr 10.5.34.0/24 masquerade'`, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			sorted := func() string { return nftSorted(ns.Sh("nft list table inet leno")) }
			nftApply(t, ns, random(two()))
			want := sorted()
			ns.Sh(tt.script)
			if tt.transactions > 0 {
				if damaged, _ := ns.Try("nft list table inet leno"); nftSorted(damaged) == want && !strings.Contains(tt.name, "asleep") {
					t.Fatal("nothing is damaged")
				}
			}
			if got := nftApply(t, ns, random(two())); got != tt.transactions {
				t.Errorf("repaired in %d transactions, want %d", got, tt.transactions)
			}
			if diff := cmp.Diff(want, sorted()); diff != "" {
				t.Errorf("not repaired (-want +got):\n%s", diff)
			}
			if got := nftApply(t, ns, random(two())); got != 0 {
				t.Errorf("once more: %d transactions, want none", got)
			}
		})
	}
}

// nftSorted sorts the chains of a listed table by name: a chain that was made again is listed last.
func nftSorted(table string) string {
	head, rest, _ := strings.Cut(table, "\tchain ")
	chains := strings.Split(strings.TrimSuffix(rest, "}\n"), "\tchain ")
	for i := range chains {
		chains[i] = strings.TrimSpace(chains[i])
	}
	for i := range chains {
		for j := range i {
			if chains[i] < chains[j] {
				chains[i], chains[j] = chains[j], chains[i]
			}
		}
	}
	return head + strings.Join(chains, "\n")
}

// A chain stays when its rules are replaced, so that a packet sees all old rules
// or all new ones.
func TestNFTReplacesInPlace(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	nftApply(t, ns, random(two()[:1]))
	handles := func() string {
		return ns.Sh(`nft -a list table inet leno | grep -E '^table|chain'`)
	}
	before := handles()
	nftApply(t, ns, random(two()))
	if diff := cmp.Diff(before, handles()); diff != "" {
		t.Errorf("a table or chain was created again:\n%s", diff)
	}
}

// For random networks after random others, the kernel has the wanted rules, and a second Apply writes nothing.
func TestNFTRandomNetworks(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	firewalltest.Load(t, ns, nftForeign)
	foreign := ns.Sh("nft list ruleset")
	source := seed.Rand(t)
	for i := range 40 {
		networks := nftRandom(source)
		want := random(networks)
		nftApply(t, ns, want)
		ns.Do(func() {
			conn, err := netfilter.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.CloseLasting()
			state, err := readOwnTable(conn)
			if err != nil {
				t.Fatal(err)
			}
			if change := nftChangeOf(state, nftChains(want)); !change.isEmpty() || state.exists == want.isEmpty() {
				t.Fatalf("step %d: the kernel has something else than %+v: %s", i, networks, change)
			}
		})
		if got := nftApply(t, ns, want); got != 0 {
			t.Fatalf("step %d: applied again, it made %d transactions of %+v", i, got, networks)
		}
	}
	nftApply(t, ns, rules{})
	if diff := cmp.Diff(foreign, ns.Sh("nft list ruleset")); diff != "" {
		t.Errorf("after all of them (-want +got):\n%s", diff)
	}
}

func nftRandom(source *rand.Rand) []Network {
	var out []Network
	for i := range source.IntN(4) {
		n := Network{Name: fmt.Sprintf("n%d", i), IPMasq: source.IntN(3) > 0, Forward: source.IntN(3) > 0}
		for _, family := range []struct {
			addr netip.Addr
			bits int
		}{{netip.AddrFrom4([4]byte{10, byte(source.IntN(256)), byte(source.IntN(256))}), 32},
			{netip.AddrFrom16([16]byte{0xfd, 0, byte(source.IntN(256)), byte(source.IntN(256))}), 128}} {
			if source.IntN(4) == 0 {
				continue
			}
			pool, subnet := 8+source.IntN(family.bits/2), 0
			subnet = pool + source.IntN(family.bits-pool) + 1
			n.Pools = append(n.Pools, netip.PrefixFrom(family.addr, pool).Masked())
			if source.IntN(4) > 0 {
				n.Subnets = append(n.Subnets, netip.PrefixFrom(family.addr, subnet).Masked())
			}
		}
		out = append(out, n)
	}
	return out
}

// With two hundred networks there are more rules than the default socket buffers hold.
func TestNFTManyNetworks(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	var networks []Network
	for i := range 200 {
		n := two()[0]
		n.Name = fmt.Sprintf("n%d", i)
		n.Pools = prefixes(fmt.Sprintf("10.%d.0.0/16", i), fmt.Sprintf("fd00:%d::/48", i))
		n.Subnets = prefixes(fmt.Sprintf("10.%d.7.0/24", i), fmt.Sprintf("fd00:%d:0:7::/64", i))
		networks = append(networks, n)
	}
	for range 2 {
		if got := nftApply(t, ns, random(networks)); got != 1 {
			t.Errorf("%d transactions, want one", got)
		}
		if got := nftApply(t, ns, random(networks)); got != 0 {
			t.Errorf("%d transactions of a second Apply, want none", got)
		}
		networks = networks[1:]
	}
	if got := strings.Count(ns.Sh("nft list table inet leno"), "leno n"); got != 199*22 {
		t.Errorf("%d rules, want %d", got, 199*22)
	}
}
