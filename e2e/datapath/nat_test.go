package datapath

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// The addresses of newNAT: hosts a and b behind the router, which has the public address, and c outside.
const (
	natPublic  = "203.0.113.1"
	natOutside = "203.0.113.3"
)

// newNAT lays out hosts a and b on a link behind a router, which translates their addresses and passes the ports
// 51820 and 51821 on to a, and 51830 and 51831 to b. Host c is outside. Host d is behind the router and starts no agent.
// Consul is reached past the router.
func newNAT(t *testing.T) (w *testWorld, hosts []*lab.Host, config func(h *lab.Host) string) {
	t.Helper()
	w = newWorld(t, lab.Options{Hosts: 5})
	a, b, c, d, router := w.Hosts[0], w.Hosts[1], w.Hosts[2], w.Hosts[3], w.Hosts[4]
	sh := func(h *lab.Host, script string) {
		t.Helper()
		_, err := h.Exec(w.Ctx, "sh", "-ec", script)
		w.Must(err)
	}
	sh(router, `
ip link add lan type bridge; ip addr add 192.168.7.254/24 dev lan; ip link set lan up
[ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || sysctl -qw net.bridge.bridge-nf-call-iptables=0
ip addr add `+natPublic+`/24 dev eth0; sysctl -qw net.ipv4.ip_forward=1
nft -f - <<'END'
table ip nat {
	chain out { type nat hook postrouting priority 100; oifname eth0 masquerade; }
	chain in {
		type nat hook prerouting priority -100
		ip daddr `+natPublic+` udp dport { 51820, 51821 } dnat to 192.168.7.1
		ip daddr `+natPublic+` udp dport 51830 dnat to 192.168.7.2:51820
		ip daddr `+natPublic+` udp dport 51831 dnat to 192.168.7.2:51821
	}
}
END`)
	for i, h := range []*lab.Host{a, b, d} {
		sh(h, fmt.Sprintf(`
ip link add lan0 type veth peer name lan%[1]d netns %[2]s
ip addr add 192.168.7.%[1]d/24 dev lan0; ip link set lan0 up; ip route add 203.0.113.0/24 via 192.168.7.254`, i+1, router.Namespace.Name))
		sh(router, fmt.Sprintf("ip link set lan%[1]d master lan; ip link set lan%[1]d up", i+1))
	}
	sh(c, "ip addr add "+natOutside+"/24 dev eth0")
	underlays := map[*lab.Host]string{
		a: `interfaces = ["lan0"]
  public_ip = "` + natPublic + `"`,
		b: `interfaces = ["lan0"]
  public_ip = "` + natPublic + `"
  public_ports = { 51820 = 51830, 51821 = 51831 }`,
		c: `interfaces = ["` + natOutside + `"]`,
	}
	underlays[d] = underlays[b]
	return w, []*lab.Host{a, b, c}, func(h *lab.Host) string {
		return h.Config(world.ShortLease, "underlay {\n  "+underlays[h]+"\n}", h.Network("default", world.Plan("wireguard")))
	}
}

// TestNAT checks that hosts behind one NAT reach each other and a host outside, also while they get new keys, and what
// is refused: a host with the port of another, and a backend that has no port for each host.
func TestNAT(t *testing.T) {
	w, hosts, config := newNAT(t)
	a, b, c, d := hosts[0], hosts[1], hosts[2], w.Hosts[3]
	for _, h := range hosts {
		w.Must(h.StartAgent(config(h)))
	}
	var containers []*lab.Container
	for _, h := range hosts {
		w.Must(h.WaitReady(w.Ctx))
		containers = append(containers, w.Container(h, "default"))
	}
	for _, h := range hosts {
		w.WaitPeers(h, "default", 2)
	}
	w.Linked(containers)
	w.MatrixOf(containers)

	endpoint := func(from, to *lab.Host) string {
		t.Helper()
		var list api.PeerList
		w.Must(world.GetJSON(w.Ctx, from, "/v1/network/default/peers", &list))
		for _, p := range list.Peers {
			if p.Node == to.Name {
				return p.Endpoint.String()
			}
		}
		return ""
	}
	for _, tt := range []struct {
		from, to *lab.Host
		want     string
	}{{a, b, "192.168.7.2:51820"}, {b, a, "192.168.7.1:51820"}, {b, c, natOutside + ":"}, {c, a, natPublic + ":"}, {c, b, natPublic + ":"}} {
		w.Eventually(fmt.Sprintf("%s to send to %s at %s", tt.from.Name, tt.to.Name, tt.want), func(context.Context) error {
			if got := endpoint(tt.from, tt.to); !strings.HasPrefix(got, tt.want) {
				return fmt.Errorf("at %s", got)
			}
			return nil
		})
	}
	if out, err := a.Leno(w.Ctx, "peers"); err != nil || !strings.Contains(out, "192.168.7.2:51820") {
		t.Errorf("leno peers: %v\n%s", err, out)
	}
	if out, err := b.Leno(w.Ctx, "network", "show", "default"); err != nil || !strings.Contains(strings.Join(strings.Fields(out), " "), "public port 51830 for 51820") {
		t.Errorf("leno network show: %v\n%s", err, out)
	}
	if out, err := a.Leno(w.Ctx, "lease", "list"); err != nil || strings.Contains(out, "both have") {
		t.Errorf("leno lease list: %v\n%s", err, out)
	}
	for _, l := range w.Leases(a, "default").Leases {
		var published struct {
			Port  int      `json:"public_port"`
			Local []string `json:"local_ips"`
		}
		w.Must(json.Unmarshal(l.Backend, &published))
		want := map[string]string{a.Name: "0 [192.168.7.1]", b.Name: "51830 [192.168.7.2]", c.Name: "0 []"}[l.Node]
		if got := fmt.Sprint(published.Port, " ", published.Local); got != want {
			t.Errorf("the lease of %s says %s, want %s", l.Node, got, want)
		}
	}
	for _, h := range hosts {
		if out, err := h.Leno(w.Ctx, "doctor"); err != nil {
			t.Errorf("doctor on %s: %v\n%s", h.Name, err, out)
		}
	}

	// A host with the address and the port of another has no lease.
	w.Must(d.StartAgent(config(d)))
	w.WaitHealth(d, 503, "another live host has the same public address", b.Name)
	out, err := d.Leno(w.Ctx, "doctor")
	if err == nil || !strings.Contains(out, "underlay.public_ports") {
		t.Errorf("doctor on %s: %v\n%s", d.Name, err, out)
	}
	w.Must(d.StopAgent(w.Ctx))

	for _, kind := range []string{"vxlan", "udp", "host-gw"} {
		file := w.Definition("default", world.Plan(kind))
		out, err := a.Leno(w.Ctx, "network", "apply", file)
		if err == nil || !strings.Contains(err.Error(), "backend "+kind+" needs a public address for each host") || !strings.Contains(err.Error(), b.Name+" (underlay.public_ports)") {
			t.Errorf("apply %s: %v\n%s", kind, err, out)
		}
	}

	pings, talks := w.between(containers)
	w.turn("-rotate-keys")
	w.switchedOn(hosts, "wireguard", `"rotated":true`)
	pings.flows()
	pings.stop()
	for _, talk := range talks {
		w.Must(talk.WaitEchoes(w.Ctx, 3))
		_, err := talk.Stop()
		w.Must(err)
	}

	for _, h := range []*lab.Host{b, c} {
		w.Must(h.KillAgent())
		w.Must(h.StartAgent(config(h)))
	}
	for _, to := range containers[:2] { // packets from outside come first
		w.Must(containers[2].Reach(w.Ctx, to.Addrs[0]))
	}
	w.MatrixOf(containers)
	for _, h := range hosts {
		w.WaitHealth(h, 200)
	}
}
