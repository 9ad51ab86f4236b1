package config

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCompare(t *testing.T) {
	blue := Network{Name: "blue", SubnetFile: "/run/leno/blue.env"}
	for _, tt := range []struct {
		name   string
		change func(c *Config)
		want   []string
	}{
		{"nothing", func(*Config) {}, nil},
		{"an empty list for none", func(c *Config) { c.Underlay.Interfaces = []string{} }, nil},
		{"text", func(c *Config) { c.Consul.KVPrefix = "net" }, []string{`consul.kv_prefix: "leno" -> "net", restart`}},
		{"duration", func(c *Config) { c.Lease.Hold = 90 * time.Minute }, []string{`lease.hold: "24h" -> "1h30m"`}},
		{"flag", func(c *Config) { c.WatchNetworks = true }, []string{`watch_networks: false -> true`}},
		{"address", func(c *Config) { c.Underlay.CanReach = netip.MustParseAddr("192.0.2.1") }, []string{`underlay.can_reach: "" -> "192.0.2.1"`}},
		{"list", func(c *Config) { c.AllowedNetworks = []string{"a", "b"} }, []string{`allowed_networks: ["*"] -> ["a", "b"]`}},
		{"inner block", func(c *Config) { c.Consul.TLS.CAFile = "/ca" }, []string{`consul.tls.ca_file: "" -> "/ca", restart`}},
		{"a secret", func(c *Config) { c.Consul.Token = "hush" }, []string{`consul.token: not set -> set`}},
		{"another store", func(c *Config) {
			c.Consul, c.Etcd = Consul{}, Etcd{Endpoints: []string{"http://a:1"}, Network: "n"}
		},
			[]string{`consul.kv_prefix: "leno" -> "", restart`, `consul.service: "leno" -> ""`,
				`etcd.endpoints: [] -> ["http://a:1"], restart`, `etcd.network: "" -> "n", restart`}},
		{"a user of etcd", func(c *Config) { c.Etcd.Username, c.Etcd.Password = "leno", "hush" },
			[]string{`etcd.username: "" -> "leno"`, `etcd.password: not set -> set`}},
		{"several", func(c *Config) { c.Consul.Address, c.DataDir = "consul:1", "/d" },
			[]string{`data_dir: "/var/lib/leno" -> "/d", restart`, `consul.address: "" -> "consul:1", restart`}},
		{"network comes", func(c *Config) { c.Networks = append(c.Networks, Network{Name: "red"}) }, []string{`network.red: not defined -> defined`}},
		{"network goes", func(c *Config) { c.Networks = nil }, []string{`network.blue: defined -> not defined`}},
		{"network changes", func(c *Config) {
			c.Networks = []Network{blue}
			c.Networks[0].IPMasq = true
			c.Networks[0].Pools = []Pool{{Prefix: netip.MustParsePrefix("10.6.0.0/16")}}
			c.Networks[0].Backend = &Backend{Type: "udp", Options: json.RawMessage(`{}`)}
		}, []string{`network.blue.ipv4/ipv6: [] -> [10.6.0.0/16 /0 -]`, `network.blue.backend: none -> udp {}`, `network.blue.ip_masq: false -> true`}},
		{"order", func(c *Config) { c.Networks = []Network{{Name: "red"}, blue} }, []string{`network.red: not defined -> defined`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := Defaults()
			before.Networks = []Network{blue}
			after := before
			tt.change(&after)
			var got []string
			for _, c := range Compare(before, after) {
				line := c.String()
				if c.Restart {
					line += ", restart"
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}

	before, after := Defaults(), Defaults()
	before.Consul.Token, after.Consul.Token = "old", "new"
	if got := Compare(before, after); len(got) != 1 || got[0].String() != "consul.token: set -> set" {
		t.Errorf("another secret: %v", got)
	}
}
