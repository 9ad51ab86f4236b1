package catalog

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTagsAndMeta(t *testing.T) {
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	for _, tt := range []struct {
		name  string
		parts []Membership
		tags  []string
		meta  map[string]string
	}{
		{"none", nil, []string{}, map[string]string{}},
		{"one", []Membership{{"default", "vxlan", prefixes("10.5.34.0/24", "fd00:5:0:22::/64")}}, []string{"default"}, map[string]string{
			"network": "default", "subnet": "10.5.34.0/24,fd00:5:0:22::/64", "backend": "vxlan",
			"subnet_default": "10.5.34.0/24,fd00:5:0:22::/64", "backend_default": "vxlan"}},
		{"several", []Membership{{"blue", "vxlan", prefixes("10.5.34.0/24")}, {"green", "udp", prefixes("10.6.1.0/24")}, {"red", "vxlan", prefixes("10.7.1.0/24")}},
			[]string{"blue", "green", "red"}, map[string]string{
				"network": "blue,green,red", "subnet": "10.5.34.0/24,10.6.1.0/24,10.7.1.0/24", "backend": "udp,vxlan",
				"subnet_blue": "10.5.34.0/24", "backend_blue": "vxlan", "subnet_green": "10.6.1.0/24", "backend_green": "udp",
				"subnet_red": "10.7.1.0/24", "backend_red": "vxlan"}},
		{"keys that Consul takes", []Membership{{"a.b", "vxlan", prefixes("10.5.1.0/24")}, {"a_b", "udp", prefixes("10.6.1.0/24")}},
			[]string{"a.b", "a_b"}, map[string]string{"network": "a.b,a_b", "subnet": "10.5.1.0/24,10.6.1.0/24", "backend": "udp,vxlan",
				"subnet_a_b": "10.5.1.0/24", "backend_a_b": "vxlan"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tags, meta := tagsAndMeta(tt.parts)
			if diff := cmp.Diff(tt.tags, tags) + cmp.Diff(tt.meta, meta); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestMetaOfManyNetworks: Consul refuses a service that exceeds one of its limits.
func TestMetaOfManyNetworks(t *testing.T) {
	var parts []Membership
	for i := range 100 {
		parts = append(parts, Membership{fmt.Sprintf("%s-%03d", strings.Repeat("n", 60), i), "vxlan",
			[]netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", i)), netip.MustParsePrefix(fmt.Sprintf("fd00:5:1111:%d::/64", i))}})
	}
	tags, meta := tagsAndMeta(parts)
	if len(tags) != len(parts) || len(meta)+4 > 64 || len(meta) < 50 {
		t.Errorf("%d tags, %d pairs", len(tags), len(meta))
	}
	key := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`)
	for k, v := range meta {
		if !key.MatchString(k) || len(v) > 512 {
			t.Errorf("%s = %s", k, v)
		}
	}
	if v := meta["network"]; !strings.HasSuffix(v, "-006,...") {
		t.Errorf("cut anywhere: %s", v)
	}
}
