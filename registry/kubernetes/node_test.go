package kubernetes

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/registry"
)

func testForeign(t *testing.T, c *cluster) {
	a := c.open(t, "host-a", vxlanConf)
	c.add(t, "host-a", nil, "10.244.1.0/24")
	c.add(t, "host-f", flannelNode(9), "10.244.2.0/24")
	acquire(t, a, claim(t, "host-a", 1))
	set, _ := await(t, a, "host-a 10.244.1.0/24", "host-f 10.244.2.0/24")
	f := set.Leases[1]
	if f.NodeID != "flannel-192.0.2.9" || !f.Held() || f.PublicIPs[0] != netip.MustParseAddr("192.0.2.9") ||
		!strings.Contains(string(f.Backend.Object), `"vtep_mac":"0a:58:00:00:01:09"`) {
		t.Errorf("a host with flannel: %+v, backend %s", f, f.Backend.Object)
	}
	// What flannel reads of a leno host.
	have := c.Annotations(t, "host-a")
	for name, want := range map[string]string{
		"kube-subnet-manager": "true",
		"backend-type":        "vxlan",
		"backend-data":        `{"VNI":1,"VtepMAC":"0a:58:00:00:00:01"}`,
		"public-ip":           "192.0.2.1",
	} {
		if got := have[DefaultAnnotationPrefix+"/"+name]; got != want {
			t.Errorf("annotation %s is %q, want %q", name, got, want)
		}
	}
}

func testBroken(t *testing.T, c *cluster) {
	a := c.open(t, "host-a", vxlanConf)
	c.add(t, "host-a", nil, "10.244.1.0/24")
	acquire(t, a, claim(t, "host-a", 1))
	leno := c.Annotations(t, "host-a")
	for i, tt := range []struct {
		name   string
		change map[string]string // of flannel's annotations, by the end of their names, and of leno's
		cidr   string
		reason string
	}{
		{"data that is no JSON", map[string]string{"backend-data": "{"}, "", "backend-data is not JSON"},
		{"data without a MAC address", map[string]string{"backend-data": `{"VNI":1}`}, "", "VtepMAC"},
		{"null", map[string]string{"backend-data": `null`}, "", "VtepMAC"},
		{"another VNI", map[string]string{"backend-data": `{"VNI":7,"VtepMAC":"0a:58:00:00:01:01"}`}, "", "VNI is 7"},
		{"no address", map[string]string{"public-ip": ""}, "", "PublicIP"},
		{"a name as address", map[string]string{"public-ip": "host-b"}, "", "not a lease"},
		{"an address in the network", map[string]string{"public-ip": "10.244.3.1"}, "", "10.244.3.1"},
		{"a subnet elsewhere", nil, "10.99.0.0/24", "10.99.0.0/24"},
		{"a subnet of another size", nil, "10.244.128.0/25", "/24"},
		{"a subnet that another node has", nil, "10.244.1.0/24", "host-a"},
		{"leno's record is no JSON", map[string]string{lenoAnnotation: "leno"}, "", "not JSON"},
		{"leno's record is too large", map[string]string{lenoAnnotation: strings.Repeat("x", 17000)}, "", "17000 bytes, at most 16384"},
		{"leno's record of another subnet", map[string]string{lenoAnnotation: leno[lenoAnnotation]}, "", "10.244.1.0/24"},
		{"leno's record has no members", map[string]string{lenoAnnotation: "{}"}, "", "version"},
		{"leno's record alone", map[string]string{lenoAnnotation: "{}", "kube-subnet-manager": ""}, "", "subnet-manager"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			annotations := flannelNode(100 + i)
			for name, value := range tt.change {
				if name != lenoAnnotation {
					name = DefaultAnnotationPrefix + "/" + name
				}
				annotations[name] = value
			}
			cidr := tt.cidr
			if cidr == "" {
				cidr = fmt.Sprintf("10.244.%d.0/24", 100+i)
			}
			c.add(t, "host-broken", annotations, cidr)
			set, _ := awaitSet(t, a, func(s registry.LeaseSet) bool { return len(s.Bad) == 1 }, "one bad record")
			if set.Bad[0].Key != "nodes/host-broken" || !strings.Contains(set.Bad[0].Reason, tt.reason) {
				t.Errorf("bad record %+v, want a reason with %q", set.Bad[0], tt.reason)
			}
			if got := texts(set); !slices.Equal(got, []string{"host-a 10.244.1.0/24"}) {
				t.Errorf("leases %q", got)
			}
			c.DeleteNode(t, "host-broken")
			awaitSet(t, a, func(s registry.LeaseSet) bool { return len(s.Bad) == 0 }, "no bad record")
		})
	}
}

func testUnsuitable(t *testing.T, c *cluster) {
	c.add(t, "host-without", flannelNode(8))
	c.add(t, "host-elsewhere", nil, "10.99.1.0/24")
	c.add(t, "host-small", nil, "10.244.1.0/25")
	c.add(t, "host-ipv6", nil, "fd00::/64")
	for _, tt := range []struct {
		node string
		err  error
		says []string
	}{
		{"host-without", registry.ErrLeaseNotFound, []string{"node host-without has no podCIDR", "--allocate-node-cidrs"}},
		{"host-none", registry.ErrLeaseNotFound, []string{"no node host-none"}},
		{"host-elsewhere", registry.ErrInvalid, []string{"host-elsewhere", "10.99.1.0/24", "10.244.0.0/16"}},
		{"host-small", registry.ErrInvalid, []string{"host-small", "10.244.1.0/25", "/24"}},
		{"host-ipv6", registry.ErrInvalid, []string{"host-ipv6", "fd00::/64", "10.244.0.0/16"}},
	} {
		client := c.open(t, tt.node, vxlanConf)
		_, err := client.Acquire(t.Context(), network(t, client), claim(t, tt.node, 1))
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, want %v", tt.node, err, tt.err)
			continue
		}
		for _, word := range tt.says {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v does not say %q", tt.node, err, word)
			}
		}
		if set, _ := await(t, client); len(set.Bad) > 0 {
			t.Errorf("%s: bad records %v", tt.node, set.Bad)
		}
	}
	t.Setenv("NODE_NAME", "")
	client := c.open(t, "", vxlanConf)
	if _, err := client.Acquire(t.Context(), network(t, client), claim(t, "a", 1)); !errors.Is(err, registry.ErrInvalid) {
		t.Errorf("without a name: %v", err)
	}
}

func testOverwrite(t *testing.T, c *cluster) {
	a := c.open(t, "host-a", vxlanConf)
	overwrite := DefaultAnnotationPrefix + "/public-ip-overwrite"
	c.add(t, "host-a", map[string]string{overwrite: "198.51.100.7"}, "10.244.1.0/24")
	l := acquire(t, a, claim(t, "host-a", 1))
	if got := fmt.Sprint(l.PublicIPs); got != "[198.51.100.7]" {
		t.Errorf("public addresses %s", got)
	}
	if got := c.Annotations(t, "host-a")[DefaultAnnotationPrefix+"/public-ip"]; got != "198.51.100.7" {
		t.Errorf("annotation public-ip is %s", got)
	}
	if err := a.Release(t.Context(), l); err != nil {
		t.Error(err)
	}
	if got := c.Annotations(t, "host-a"); len(got) != 1 || got[overwrite] == "" {
		t.Errorf("after the release, the annotations are %v", got)
	}
	c.Annotate(t, "host-a", map[string]any{overwrite: "host-a"})
	if _, err := a.Acquire(t.Context(), network(t, a), claim(t, "host-a", 1)); !errors.Is(err, registry.ErrInvalid) ||
		!strings.Contains(err.Error(), overwrite) {
		t.Errorf("an address that is none: %v", err)
	}
}
