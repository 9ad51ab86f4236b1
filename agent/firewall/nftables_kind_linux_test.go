package firewall

import (
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/internal/testkit/firewalltest"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// nftablesHarness returns the harness of the native kind.
func nftablesHarness() harness {
	h := harness{
		kind:    kindNFTables,
		only:    func() *Firewall { return onlyOf(newNFTables(hclog.NewNullLogger())) },
		saved:   func(ns *nstest.NS) string { return nftByName(ns.Sh("nft list ruleset")) },
		foreign: "nft -f - <<'X'\n" + nftForeign + "\nX",
		drop:    "true", // no rule of this kind could overrule one
		tables:  1,
		changed: 1,
		damage:  map[string]damage{},
		shows: []string{
			`overlay {
		type nat hook postrouting priority srcnat - 10; policy accept;
		ip saddr 10.5.34.0/24 ip daddr 10.5.34.0/24 return comment "leno default"
		ip saddr 10.5.34.0/24 ip daddr 10.5.0.0/16 snat ip to ip saddr comment "leno default"
		ip6 saddr fd00:5:0:22::/64 ip6 daddr fd00:5:0:22::/64 return comment "leno default"
		ip6 saddr fd00:5:0:22::/64 ip6 daddr fd00:5::/48 snat ip6 to ip6 saddr comment "leno default"
		ip saddr 10.6.1.0/24`,
			`		ip6 saddr fd00:5:0:22::/64 masquerade fully-random comment "leno default"` + "\n",
		},
	}
	for name, script := range map[string]string{
		"ruleset flushed":  "nft delete table inet leno",
		"chain flushed":    "nft flush chain inet leno forward",
		"rule added":       "nft insert rule inet leno forward ip saddr 10.5.3.0/24 drop",
		"one family alone": `nft delete rule inet leno overlay handle $(nft -a list chain inet leno overlay | sed -n 's/.*snat ip6.*handle //p')`,
		"asleep":           "nft 'add table inet leno { flags dormant; }'",
	} {
		h.damage[name] = damage{script, 1}
	}
	return h
}

// nftByName is nftSorted for the table that is listed last.
func nftByName(ruleset string) string {
	others, ours, found := strings.Cut(ruleset, "table inet leno {\n")
	if !found {
		return ruleset
	}
	return others + nftSorted("table inet leno {\n"+ours)
}

// TestNFTAmongOthers checks that, whether others' masquerading and rewriting or our rules came first, overlay packets
// keep their source, and an operator's rule goes before our masquerading.
func TestNFTAmongOthers(t *testing.T) {
	t.Parallel()
	const masquerades = `table ip docker { chain p { type nat hook postrouting priority srcnat; ip saddr 10.5.0.0/16 ip daddr != 192.0.2.0/24 masquerade; }; }
		table ip6 docker { chain p { type nat hook postrouting priority srcnat; ip6 saddr fd00:5::/48 ip6 daddr != 2001:db8::/64 masquerade; }; }
		table ip operator { chain p { type nat hook postrouting priority srcnat; ip saddr 10.5.34.0/24 tcp dport 9 snat to 192.0.2.99; }; }`
	for _, tt := range []struct {
		name          string
		before, after string // rules that others load before and after ours
		script        string
	}{
		{"older than ours", masquerades, "", ""},
		{"younger than ours", "", masquerades, ""},
		{"of iptables-legacy", "", "", `iptables-legacy -t nat -A POSTROUTING -s 10.5.0.0/16 ! -d 192.0.2.0/24 -j MASQUERADE
			ip6tables-legacy -t nat -A POSTROUTING -s fd00:5::/48 ! -d 2001:db8::/64 -j MASQUERADE
			iptables-legacy -t nat -A POSTROUTING -p tcp --dport 9 -s 10.5.34.0/24 -j SNAT --to-source 192.0.2.99`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLane(t)
			l.host.Sh("ip addr add 192.0.2.99/24 dev eth0")
			firewalltest.Load(t, l.host, tt.before)
			apply(t, l.host, nftablesHarness().only(), two(), 1)
			firewalltest.Load(t, l.host, tt.after)
			l.host.Sh(tt.script)
			for _, c := range []struct {
				to   string
				port int
				from string
			}{
				{"10.5.99.2", 0, "10.5.34.2"},
				{"fd00:5:0:99::2", 0, "fd00:5:0:22::2"},
				{"192.0.2.1", 0, "192.0.2.34"},
				{"2001:db8::1", 0, "2001:db8::34"},
				{"192.0.2.1", 9, "192.0.2.99"},
			} {
				if got := connect(t, l.container, l.world, c.to, c.port); got != c.from {
					t.Errorf("%s port %d saw %s, want %s", c.to, c.port, got, c.from)
				}
			}
		})
	}
}
