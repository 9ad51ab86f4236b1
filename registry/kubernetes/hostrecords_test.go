package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/lenonet/leno/registry"
)

// found returns the leases of host-a as "host-a 10.244.1.0/24".
func found(t *testing.T, c *Client, h registry.Host) (leases []registry.Lease, text []string) {
	t.Helper()
	records, err := c.HostRecords(t.Context(), "", h)
	if err != nil || len(records.Sessions) > 0 {
		t.Fatalf("sessions %q, %v", records.Sessions, err)
	}
	for _, l := range records.Leases {
		text = append(text, fmt.Sprintf("%s %s", l.Node, l.Subnet()))
	}
	return records.Leases, text
}

// testHostRecords finds the leases of host-a and removes them, whatever became of them.
func testHostRecords(t *testing.T, c *cluster) {
	const prefix = DefaultAnnotationPrefix + "/"
	me := registry.Host{Node: "host-a", NodeID: "id-host-a"}
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, a *Client) // after host-a and host-b have acquired their leases
		want   []string
		left   int // how many annotations the Node has in the end
	}{
		{"a lease", func(*testing.T, *Client) {}, []string{"host-a 10.244.1.0/24"}, 0},
		{"without the configuration of the network", func(t *testing.T, a *Client) {
			if err := os.Remove(a.conf.NetConf); err != nil {
				t.Fatal(err)
			}
		}, []string{"host-a 10.244.1.0/24"}, 0},
		{"released", func(t *testing.T, a *Client) {
			leases, _ := found(t, a, me)
			if err := a.Release(t.Context(), leases[0]); err != nil {
				t.Fatal(err)
			}
		}, nil, 0},
		{"flannel alone", func(t *testing.T, _ *Client) {
			c.Annotate(t, "host-a", map[string]any{lenoAnnotation: nil})
		}, nil, 4},
		{"flannel has written its own since", func(t *testing.T, _ *Client) {
			c.Annotate(t, "host-a", map[string]any{prefix + "backend-data": `{"VNI":1,"VtepMAC":"0a:58:00:00:01:01"}`})
		}, []string{"host-a 10.244.1.0/24"}, 4},
		{"the same, without the configuration", func(t *testing.T, a *Client) {
			c.Annotate(t, "host-a", map[string]any{prefix + "backend-data": `{"VNI":1,"VtepMAC":"0a:58:00:00:01:01"}`})
			if err := os.Remove(a.conf.NetConf); err != nil {
				t.Fatal(err)
			}
		}, []string{"host-a 10.244.1.0/24"}, 4},
		{"no JSON", func(t *testing.T, _ *Client) {
			c.Annotate(t, "host-a", map[string]any{lenoAnnotation: "leno"})
		}, []string{"host-a 10.244.1.0/24"}, 4},
		{"flannel's data is no JSON", func(t *testing.T, _ *Client) {
			c.Annotate(t, "host-a", map[string]any{prefix + "backend-data": "{"})
		}, []string{"host-a 10.244.1.0/24"}, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := c.open(t, "host-a", vxlanConf), c.open(t, "host-b", vxlanConf)
			c.add(t, "host-a", nil, "10.244.1.0/24")
			c.add(t, "host-b", nil, "10.244.2.0/24")
			c.add(t, "host-f", flannelNode(9), "10.244.3.0/24")
			me.Sessions = []string{acquire(t, a, claim(t, "host-a", 1)).Session}
			acquire(t, b, claim(t, "host-b", 2))
			tt.change(t, a)
			leases, got := found(t, a, me)
			if !slices.Equal(got, tt.want) {
				t.Fatalf("found %q, want %q", got, tt.want)
			}
			for _, l := range leases {
				if l.Session != me.Sessions[0] || fmt.Sprint(l.PublicIPs) != "[192.0.2.1]" {
					t.Errorf("found %+v", l)
				}
				if err := a.Release(t.Context(), l); err != nil {
					t.Error(err)
				}
			}
			if left := c.Annotations(t, "host-a"); len(left) != tt.left || left[lenoAnnotation] != "" {
				t.Errorf("annotations %v, want %d", left, tt.left)
			}
			if _, got := found(t, a, me); len(got) > 0 {
				t.Errorf("after the release: %q", got)
			}
			if other := c.Annotations(t, "host-b"); other[lenoAnnotation] == "" || len(c.Annotations(t, "host-f")) != 4 {
				t.Errorf("another host's annotations have changed: %v", other)
			}
		})
	}
}

// testRenamedHost finds the lease that a host has under a former name of its Node.
func testRenamedHost(t *testing.T, c *cluster) {
	c.add(t, "host-old", nil, "10.244.1.0/24")
	c.add(t, "host-a", nil, "10.244.2.0/24")
	old := c.open(t, "host-old", vxlanConf)
	l := acquire(t, old, claim(t, "host-old", 1))
	a := c.open(t, "host-a", vxlanConf)
	for name, h := range map[string]registry.Host{
		"its name":    {Node: "host-old"},
		"its node id": {Node: "host-a", NodeID: "id-host-old"},
		"its session": {Node: "host-a", NodeID: "id-other", Sessions: []string{l.Session}},
	} {
		if _, got := found(t, a, h); !slices.Equal(got, []string{"host-old 10.244.1.0/24"}) {
			t.Errorf("by %s: %q", name, got)
		}
	}
	if _, got := found(t, a, registry.Host{Node: "host-a"}); len(got) > 0 {
		t.Errorf("of another host: %q", got)
	}
	leases, _ := found(t, a, registry.Host{NodeID: "id-host-old"})
	if err := a.Release(t.Context(), leases[0]); err != nil {
		t.Fatal(err)
	}
	if left := c.Annotations(t, "host-old"); len(left) > 0 {
		t.Errorf("after the release: %v", left)
	}
	if records, err := a.HostRecords(t.Context(), "other", registry.Host{Node: "host-old"}); err != nil ||
		len(records.Leases) > 0 {
		t.Errorf("of another network: %+v, %v", records, err)
	}
	_, err := a.As("wrong").(*Client).HostRecords(t.Context(), "", registry.Host{Node: "host-a"})
	if !errors.Is(err, registry.ErrDenied) {
		t.Errorf("without rights: %v", err)
	}
}
