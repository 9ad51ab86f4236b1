package handover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/registry"
)

// TestFlanneld: flanneld counts if it runs in this network namespace, or if that cannot be told.
func TestFlanneld(t *testing.T) {
	for _, tt := range []struct {
		name, namespace string // of the process 7, "" if that cannot be read
		want            string
	}{
		{"flanneld", "net:[1]", "7 <nil>"},
		{"flanneld", "net:[2]", "0 <nil>"},
		{"other", "net:[1]", "0 <nil>"},
		{"flanneld", "", "0 flanneld may be running here: readlink PROC/7/ns/net: invalid argument"},
	} {
		proc := t.TempDir()
		for pid, ns := range map[string]string{"self": "net:[1]", "7": tt.namespace} {
			path := filepath.Join(proc, pid, "ns/net")
			err := os.MkdirAll(filepath.Dir(path), 0o755)
			if ns == "" {
				err = errors.Join(err, os.WriteFile(path, nil, 0o600))
			} else {
				err = errors.Join(err, os.Symlink(ns, path))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(proc, "7/comm"), []byte(tt.name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		pid, err := flanneld(proc)
		if got := strings.ReplaceAll(fmt.Sprint(pid, " ", err), proc, "PROC"); got != tt.want {
			t.Errorf("%s in %q: %q, want %q", tt.name, tt.namespace, got, tt.want)
		}
	}
}

func networkOf(t *testing.T, kind, options string) registry.Network {
	t.Helper()
	b, err := registry.NewBackend(kind, []byte(options))
	if err != nil {
		t.Fatal(err)
	}
	return registry.Network{Name: "default", Backend: b, Plan: registry.Plan{
		{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 24},
		{Prefix: netip.MustParsePrefix("fd00:5::/48"), SubnetLen: 64},
	}}
}

// lease is that of another host.
func lease(n int) registry.Lease {
	return registry.Lease{
		Subnets: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", n)), netip.MustParsePrefix(fmt.Sprintf("fd00:5:0:%d::/64", n)),
		},
		PublicIPs: []netip.Addr{
			netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", n)), netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", n)),
		},
	}
}

const (
	underlay = `ip link add eth0 type veth peer name far; ip link set far up; ip link set eth0 up
ip addr add 192.0.2.1/24 dev eth0; ip -6 addr add 2001:db8::1/64 dev eth0 nodad`

	flannelVXLAN = `
ip link add flannel.1 address c6:00:00:00:00:04 type vxlan id 1 local 192.0.2.1 dev eth0 dstport 8472 nolearning
ip link add flannel-v6.1 address c6:00:00:00:00:06 type vxlan id 1 local 2001:db8::1 dev eth0 dstport 8472 nolearning
ip addr add 10.5.1.0/32 dev flannel.1; ip link set flannel.1 up
ip addr add fd00:5:0:1::/128 dev flannel-v6.1; ip link set flannel-v6.1 up
ip route add 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink
ip route add fd00:5:0:2::/64 via fd00:5:0:2:: dev flannel-v6.1 onlink`

	// The routes of others that flannel's could be mistaken for.
	strangers = `
ip link add other type vxlan id 2 local 192.0.2.1 dev eth0 dstport 8472; ip link set other up
ip link add flannel.9 type vxlan id 9 local 192.0.2.1 dev eth0 dstport 8472; ip link set flannel.9 up
ip route add 10.5.80.0/24 via 192.0.2.80 dev eth0
ip route add 10.5.81.0/24 via 192.0.2.81 dev eth0 proto static
ip route add 10.6.0.0/24 via 192.0.2.82 dev eth0`

	hostGW = `
ip route add 10.5.2.0/24 via 192.0.2.2 dev eth0
ip route add fd00:5:0:2::/64 via 2001:db8::2 dev eth0`
)

// kernelState returns what could be handed over, each with its marks, and without the devices' index.
func kernelState(ns *nstest.NS) string {
	out := ns.Sh(`ip -o -d link show type vxlan | sed -E 's/^[0-9]+: ([^:@]*)[:@].* link\/ether ([^ ]*).*local ([^ ]*).*/\1 \2 \3/; t; s/.*//' | sort
ip -o -d link show type vxlan | sed -nE 's/^[0-9]+: ([^:@]*)[:@].*alias (.*)/\1 alias \2/p' | sort
ip -N route show root 10.0.0.0/8; ip -N -6 route show root fd00:5::/48`)
	var lines []string
	for line := range strings.Lines(out) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func (h handedOver) run(t *testing.T, back bool) Report {
	t.Helper()
	var r Report
	var err error
	run := Adopt
	if back {
		run = Return
	}
	h.ns.Do(func() { r, err = run(t.Context(), h.options) })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

type handedOver struct {
	ns      *nstest.NS
	options Options
}

// TestHandover adopts what flannel has created, among the devices and routes of others, and gives it back. Nothing but
// the marks changes, and nothing changes the second time.
func TestHandover(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	for _, tt := range []struct {
		kind, options, script string
		adopted               []string // old and new, in what the kernel shows
	}{
		{"vxlan", `{"vni":1,"port":8472}`, flannelVXLAN, []string{
			"dev flannel.1 onlink", "dev flannel.1 proto 108 onlink",
			"dev flannel-v6.1 metric 1024", "dev flannel-v6.1 proto 108 metric 1024",
		}},
		{"host-gw", `{}`, hostGW, []string{
			"10.5.2.0/24 via 192.0.2.2 dev eth0", "10.5.2.0/24 via 192.0.2.2 dev eth0 proto 108",
			"fd00:5:0:2::/64 via 2001:db8::2 dev eth0 metric", "fd00:5:0:2::/64 via 2001:db8::2 dev eth0 proto 108 metric",
		}},
		{"udp", `{"port":8285}`, "", nil},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			h := handedOver{nstest.New(t), Options{Network: networkOf(t, tt.kind, tt.options), Leases: []registry.Lease{lease(1), lease(2)}}}
			h.ns.Sh(underlay + tt.script + strangers)
			h.ns.Settle()
			flannels := kernelState(h.ns)
			dry := h
			dry.options.DryRun = true
			planned := dry.run(t, false)
			if diff := cmp.Diff(flannels, kernelState(h.ns)); diff != "" {
				t.Errorf("changed by a dry run:\n%s", diff)
			}
			done := h.run(t, false)
			want := strings.NewReplacer(tt.adopted...).Replace(flannels)
			if tt.kind == "vxlan" {
				want = strings.Replace(want, "10.5.2.0/24", fmt.Sprintf("flannel-v6.1 alias %s\nflannel.1 alias %s\n10.5.2.0/24",
					backend.OtherFamilyLinkAlias("default"), backend.LinkAlias("default")), 1)
			}
			if diff := cmp.Diff(want, kernelState(h.ns)); diff != "" {
				t.Errorf("after Adopt (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(planned.Changes, done.Changes); diff != "" || len(done.Changes) == 0 && tt.script != "" {
				t.Errorf("planned and done (-planned +done):\n%s\n%+v", diff, done)
			}
			if again := h.run(t, false); len(again.Changes) != 0 {
				t.Errorf("adopted again: %+v", again)
			}

			// What the agent does then.
			if tt.kind == "vxlan" {
				h.ns.Sh("ip link set flannel.1 name leno-default; ip link set flannel-v6.1 name leno-default~2")
			}
			h.ns.Sh(`ip route add unreachable 10.5.0.0/16 metric 16777216 proto 108
ip route add unreachable fd00:5::/48 metric 16777216 proto 108`)
			lenos := kernelState(h.ns)
			planned = dry.run(t, true)
			if diff := cmp.Diff(lenos, kernelState(h.ns)); diff != "" {
				t.Errorf("changed by a dry run:\n%s", diff)
			}
			done = h.run(t, true)
			if diff := cmp.Diff(flannels, kernelState(h.ns)); diff != "" {
				t.Errorf("after Return (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(planned.Changes, done.Changes); diff != "" {
				t.Errorf("planned and done (-planned +done):\n%s", diff)
			}
			if again := h.run(t, true); len(again.Changes) != 0 {
				t.Errorf("returned again: %+v", again)
			}
		})
	}
}

// TestReturnOfOneDevice checks that IPv6 routes over leno's only device, for which flannel has a device of its own, are
// removed.
func TestReturnOfOneDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	h := handedOver{nstest.New(t), Options{Network: networkOf(t, "vxlan", `{}`)}}
	h.ns.Sh(underlay + `
ip link add leno-default address c6:00:00:00:00:04 type vxlan id 1 local 192.0.2.1 dev eth0 dstport 8472 nolearning
ip link set leno-default up alias "leno network default"
ip route add 10.5.2.0/24 via 10.5.2.0 dev leno-default onlink proto 108
ip route add fd00:5:0:2::/64 via fd00:5:0:2:: dev leno-default onlink proto 108`)
	want := []Change{
		{Kind: Device, Name: "leno-default", Detail: "gets the name flannel.1"},
		{Kind: Route, Name: "10.5.2.0/24", Detail: "via 10.5.2.0"},
		{Kind: Route, Name: "fd00:5:0:2::/64", Removed: true},
	}
	if diff := cmp.Diff(want, h.run(t, true).Changes); diff != "" {
		t.Error(diff)
	}
	if got := kernelState(h.ns); got != "flannel.1 c6:00:00:00:00:04 192.0.2.1\n10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink" {
		t.Error(got)
	}
}

// TestReturnAgain: a Return that was killed when it had renamed the device is repeated with the same result.
func TestReturnAgain(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	removed := Change{Kind: Route, Name: "fd00:5:0:2::/64", Removed: true}
	route := Change{Kind: Route, Name: "10.5.2.0/24", Detail: "via 10.5.2.0"}
	for name, tt := range map[string]struct {
		killed string
		want   []Change
	}{
		"before it removed the alias": {"true", []Change{{Kind: Device, Name: "flannel.1", Detail: "gets the name flannel.1"}, route, removed}},
		"after that":                  {"ip link set flannel.1 alias ''", []Change{route, removed}},
	} {
		t.Run(name, func(t *testing.T) {
			h := handedOver{nstest.New(t), Options{Network: networkOf(t, "vxlan", `{}`)}}
			h.ns.Sh(underlay + `
ip link add flannel.1 address c6:00:00:00:00:04 type vxlan id 1 local 192.0.2.1 dev eth0 dstport 8472 nolearning
ip link set flannel.1 up alias "leno network default"
ip route add 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink proto 108
ip route add fd00:5:0:2::/64 via fd00:5:0:2:: dev flannel.1 onlink proto 108
` + tt.killed)
			if diff := cmp.Diff(tt.want, h.run(t, true).Changes); diff != "" {
				t.Error(diff)
			}
			if got := kernelState(h.ns); got != "flannel.1 c6:00:00:00:00:04 192.0.2.1\n10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink" {
				t.Error(got)
			}
			if again := h.run(t, true); len(again.Changes) != 0 {
				t.Errorf("returned again: %+v", again)
			}
		})
	}
}

// TestReturnWithoutGateway: a route without a gateway is reported as such.
func TestReturnWithoutGateway(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	h := handedOver{nstest.New(t), Options{Network: networkOf(t, "udp", `{"port":8285}`)}}
	h.ns.Sh(underlay + `
ip tuntap add leno-default mode tun; ip link set leno-default up
ip route add 10.5.2.0/24 dev leno-default proto 108`)
	want := []Change{{Kind: Route, Name: "10.5.2.0/24", Detail: "without a gateway"}}
	if diff := cmp.Diff(want, h.run(t, true).Changes); diff != "" {
		t.Error(diff)
	}
}

// TestHandoverAfterSwitch: after a switch to the network's other device, leno finds flannel's device as that one, and
// flannel gets it back.
func TestHandoverAfterSwitch(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	h := handedOver{nstest.New(t), Options{Network: networkOf(t, "vxlan", `{"vni":1,"port":8472}`)}}
	h.options.Network.Epoch.Number = 1
	h.ns.Sh(underlay + `
ip link add flannel.1 address c6:00:00:00:00:04 type vxlan id 1 local 192.0.2.1 dev eth0 dstport 8472 nolearning
ip link set flannel.1 up; ip route add 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink`)
	flannels := kernelState(h.ns)
	h.run(t, false)
	if got, want := kernelState(h.ns), "flannel.1 alias "+backend.LinkAliasB("default"); !strings.Contains(got, want) {
		t.Errorf("adopted: %s\nnot %s", got, want)
	}
	h.ns.Sh("ip link set flannel.1 name leno-default~b")
	h.run(t, true)
	if diff := cmp.Diff(flannels, kernelState(h.ns)); diff != "" {
		t.Errorf("after Return (-want +got):\n%s", diff)
	}
}

// TestNameInUse checks that a device whose name flannel needs is left alone, with an error that names it.
func TestNameInUse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	h := handedOver{nstest.New(t), Options{Network: networkOf(t, "vxlan", `{}`)}}
	h.ns.Sh(underlay + `
ip link add leno-default type vxlan id 1 local 192.0.2.1 dev eth0 dstport 8472
ip link add flannel.1 type bridge`)
	before := h.ns.Sh("ip -o link | cut -d: -f 1,2")
	var err error
	h.ns.Do(func() { _, err = Return(t.Context(), h.options) })
	if err == nil || err.Error() != "device leno-default: flannel.1 exists already: remove that device, or give it another name" {
		t.Errorf("error %v", err)
	}
	if after := h.ns.Sh("ip -o link | cut -d: -f 1,2"); after != before {
		t.Errorf("%s\nbefore:\n%s", after, before)
	}
}

// TestDifferentPositions: a host to which flannel gave subnets at different positions is not taken over by accident.
func TestDifferentPositions(t *testing.T) {
	ns := nstest.New(t)
	ns.Sh(underlay + flannelVXLAN)
	own := lease(1)
	own.Subnets[1] = netip.MustParsePrefix("fd00:5:0:7::/64")
	o := Options{Network: networkOf(t, "vxlan", `{}`), Leases: []registry.Lease{own, lease(2)}}
	adopt := func() (r Report, err error) {
		ns.Do(func() { r, err = Adopt(t.Context(), o) })
		return r, err
	}
	before := kernelState(ns)
	_, err := adopt()
	for _, word := range []string{"10.5.1.0/24", "fd00:5:0:7::/64", "-renumber-ipv6"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not say %s", err, word)
		}
	}
	if now := kernelState(ns); now != before {
		t.Errorf("changed: %s", cmp.Diff(before, now))
	}
	var reserved []netip.Prefix
	o.RenumberIPv6 = true
	o.Reserve = func(_ context.Context, l registry.Lease) error {
		reserved = append(reserved, l.Subnet())
		return nil
	}
	if r, err := adopt(); err != nil || len(r.Changes) == 0 || !slices.Equal(reserved, own.Subnets[:1]) {
		t.Errorf("%+v, %v, reserved %v", r, err, reserved)
	}
	// The subnets of other hosts do not matter.
	other := lease(2)
	other.Subnets[1] = netip.MustParsePrefix("fd00:5:0:9::/64")
	o.RenumberIPv6, o.Leases = false, []registry.Lease{lease(1), other}
	if _, err := adopt(); err != nil {
		t.Error(err)
	}
}
