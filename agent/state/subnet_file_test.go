package state

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/internal/testkit/agenttest"
)

func TestParseSubnetFile(t *testing.T) {
	const v4 = "LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\n"
	const v6 = "LENO_IPV6_NETWORK=fd00:5::/48\nLENO_IPV6_SUBNET=fd00:5:0:22::1/64\n"
	const rest = "LENO_MTU=1450\nLENO_IPMASQ=true\n"
	for _, tt := range []struct{ name, text, want string }{
		{"both", v4 + v6 + rest, "{[10.5.34.1/24 fd00:5:0:22::1/64] [10.5.0.0/16 fd00:5::/48] 1450 true} [10.5.34.0/24 fd00:5:0:22::/64]"},
		{"IPv6", v6 + rest, "{[fd00:5:0:22::1/64] [fd00:5::/48] 1450 true} [fd00:5:0:22::/64]"},
		{"flannel's", strings.ReplaceAll(v4+rest, "LENO_", "FLANNEL_"), "{[10.5.34.1/24] [10.5.0.0/16] 1450 true} [10.5.34.0/24]"},
		{"several of flannel's ranges", "FLANNEL_NETWORK=10.5.0.0/16,10.9.0.0/16\n" + strings.ReplaceAll("LENO_SUBNET=10.5.34.1/24\n"+v6+rest, "LENO_", "FLANNEL_"),
			"{[10.5.34.1/24 fd00:5:0:22::1/64] [10.5.0.0/16 10.9.0.0/16 fd00:5::/48] 1450 true}"},
		{"one of several bad", "LENO_NETWORK=10.5.0.0/16,\nLENO_SUBNET=10.5.34.1/24\n" + rest, `LENO_NETWORK="10.5.0.0/16," is not a range`},
		{"no range", "LENO_SUBNET=10.5.34.1/24\nLENO_MTU=1450", "{[10.5.34.1/24] [] 1450 false} [10.5.34.0/24]"},
		{"other lines", "# x\nX=1\n" + v4 + rest, "{[10.5.34.1/24] [10.5.0.0/16] 1450 true} [10.5.34.0/24]"},
		{"bad range", "LENO_NETWORK=10.5.0.0\nLENO_SUBNET=10.5.34.1/24\n" + rest, `LENO_NETWORK="10.5.0.0" is not a range`},
		{"range of the other family", "LENO_IPV6_NETWORK=10.5.0.0/16\n" + v4 + rest, `LENO_IPV6_NETWORK="10.5.0.0/16" is not a range`},
		{"no subnet", rest, "no LENO_SUBNET"},
		{"no MTU", v4, `LENO_MTU=""`},
	} {
		f, err := ParseSubnetFile(tt.text)
		got := fmt.Sprint(f, " ", f.Subnets())
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, tt.want) {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestSubnetInFile: the agent prefers the subnet of a file that it, an earlier version or flannel wrote, even if the rest
// of the file is of no use.
func TestSubnetInFile(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"IPv4 before IPv6", "LENO_IPV6_SUBNET=fd00:5:0:22::1/64\nLENO_SUBNET=10.5.34.1/24\n", "10.5.34.0/24"},
		{"IPv6", "LENO_IPV6_SUBNET=fd00:5:0:22::1/64\n", "fd00:5:0:22::/64"},
		{"flannel's", "FLANNEL_SUBNET=10.5.34.1/24\n", "10.5.34.0/24"},
		{"leno's before flannel's", "FLANNEL_SUBNET=10.5.35.1/24\nLENO_SUBNET=10.5.34.1/24\n", "10.5.34.0/24"},
		{"broken", "LENO_SUBNET=10.5.34\n", "invalid Prefix"},
		{"none", "LENO_MTU=1450\n", "invalid Prefix"},
	} {
		path := filepath.Join(t.TempDir(), "default.env")
		if err := os.WriteFile(path, []byte(tt.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := SubnetInFile(path).String(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if got := SubnetInFile(filepath.Join(t.TempDir(), "missing.env")); got.IsValid() {
		t.Errorf("missing: %s", got)
	}
}

func TestSubnetFile(t *testing.T) {
	tests := []struct {
		name  string
		pools []string
		want  []string
	}{
		{"IPv4", []string{"10.5.0.0/16"}, []string{
			"NETWORK=10.5.0.0/16", "SUBNET=10.5.34.1/24", "MTU=1450", "IPMASQ=true"}},
		{"dual stack", []string{"10.5.0.0/16", "fd00:5::/48"}, []string{
			"NETWORK=10.5.0.0/16", "SUBNET=10.5.34.1/24", "IPV6_NETWORK=fd00:5::/48", "IPV6_SUBNET=fd00:5:0:22::1/64", "MTU=1450", "IPMASQ=true"}},
		{"IPv6", []string{"fd00:5::/48"}, []string{
			"IPV6_NETWORK=fd00:5::/48", "IPV6_SUBNET=fd00:5:0:22::1/64", "MTU=1450", "IPMASQ=true"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			plan := agenttest.Plan(t, tt.pools...)
			var want string
			for _, prefix := range []string{"LENO_", "FLANNEL_"} {
				for _, line := range tt.want {
					want += prefix + line + "\n"
				}
			}
			data := FormatSubnetFile(plan, plan.Subnets(34), 1450, true)
			if diff := cmp.Diff(want, string(data)); diff != "" {
				t.Error(diff)
			}
			path := filepath.Join(t.TempDir(), "f.env")
			if err := WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
			if got := SubnetInFile(path); got != plan.Subnets(34)[0] {
				t.Errorf("read back %s", got)
			}
		})
	}
}

func TestSubnetFileWithoutMTU(t *testing.T) {
	plan, subnets := agenttest.Plan(t, "10.5.0.0/22"), []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}
	file := func(mtu int, masq bool) string {
		return string(WithoutMTU(FormatSubnetFile(plan, subnets, mtu, masq)))
	}
	if file(1450, true) != file(1400, true) || file(1450, true) == file(1450, false) || strings.Contains(file(1450, true), "MTU") {
		t.Errorf("%q", file(1450, true))
	}
}
