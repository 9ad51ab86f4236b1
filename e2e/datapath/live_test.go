package datapath

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// traffic is a set of pings that run while the test changes something.
type traffic struct {
	w       *testWorld
	streams []*lab.Echoes
}

// traffic starts pings from each container to the next one.
func (w *testWorld) traffic(containers []*lab.Container, family int) *traffic {
	w.T.Helper()
	w.Linked(containers)
	t := &traffic{w: w}
	for i, from := range containers {
		to := containers[(i+1)%len(containers)]
		s, err := from.StartEchoes(w.Ctx, to.Addrs[family], pingEvery)
		w.Must(err)
		t.streams = append(t.streams, s)
	}
	t.flows()
	return t
}

// flows blocks until answers have come on every path.
func (t *traffic) flows() {
	t.w.T.Helper()
	t.w.Must(atOnce(t.streams, func(s *lab.Echoes) error { return s.WaitAnswers(t.w.Ctx, 30) }))
}

// echo blocks until each connection has carried a large echo.
func (w *testWorld) echo(talks []*lab.Talk) {
	w.T.Helper()
	w.Must(atOnce(talks, func(t *lab.Talk) error { return t.WaitEchoes(w.Ctx, lab.LargeEcho) }))
}

// atOnce calls f for all, beside each other, and returns the first error.
func atOnce[T any](all []T, f func(T) error) error {
	var calls errgroup.Group
	for _, one := range all {
		calls.Go(func() error { return f(one) })
	}
	return calls.Wait()
}

// stop ends the pings and fails the test if one was lost.
func (t *traffic) stop() {
	t.w.T.Helper()
	t.flows()
	sent := 0
	for _, s := range t.streams {
		r, err := s.Stop()
		t.w.Must(err)
		sent += r.Sent
		if r.Lost() != 0 {
			t.w.T.Error(r.Losses())
		}
	}
	t.w.T.Logf("%d pings", sent)
}

// everywhere blocks until n routes of every host to the others satisfy fits.
func (w *testWorld) everywhere(what string, fits func(route string) bool, family string, n int) {
	w.T.Helper()
	for _, h := range w.Hosts {
		w.Eventually(what+" on "+h.Name, func(context.Context) error {
			fit := 0
			for _, route := range w.Routes(h) {
				if strings.HasPrefix(route, family) && fits(route) {
					fit++
				}
			}
			if fit != n {
				return fmt.Errorf("%d of %d: %q", fit, n, w.Routes(h))
			}
			return nil
		})
	}
}

// TestLiveChanges changes a network many times while containers ping each other: no ping is lost,
// and no device is touched.
func TestLiveChanges(t *testing.T) {
	t.Parallel()
	for _, backend := range world.Carrying {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			for _, h := range w.Hosts {
				w.Must(h.StartAgent(h.Config(world.ShortLease, h.Network("default", ""))))
			}
			v4 := func(prefix, last string) string {
				return fmt.Sprintf("ipv4 {\n prefix = %q\n min = \"10.5.1.0\"\n max = %q\n}\n", prefix, last)
			}
			carried := func(options string) string { return fmt.Sprintf("backend %q {\n%s\n}\n", backend, options) }
			first := w.Definition("default", v4("10.5.0.0/16", "10.5.99.0")+carried(""))
			w.Eventually("the network to be defined", func(ctx context.Context) error {
				_, err := w.Hosts[0].Leno(ctx, "network", "apply", first)
				return err
			})
			for _, h := range w.Hosts {
				w.Must(h.WaitReady(w.Ctx))
				w.Container(h, "default")
			}
			w.Settle("default")
			others := len(w.Hosts) - 1
			links := map[*lab.Host]string{}
			for _, h := range w.Hosts {
				links[h] = w.Link(h)
			}
			deleted := w.RouteEvents(w.Hosts[0])
			pings := w.traffic(w.Containers, 0)

			over := map[string]string{"vxlan": "dev leno-default", "udp": "dev leno-default", "wireguard": "dev leno-default", "host-gw": "dev eth0"}[backend]
			if backend == "vxlan" {
				w.Apply("default", v4("10.5.0.0/16", "10.5.99.0")+carried("direct_routing = true"))
				w.everywhere("direct routes", func(r string) bool { return strings.Contains(r, "via 192.0.2.") }, "10.5.", others)
				pings.flows()
				w.Apply("default", v4("10.5.0.0/16", "10.5.99.0")+carried("checksum_offload = \"off\""))
				w.everywhere("routes over the device", func(r string) bool { return strings.Contains(r, over) }, "10.5.", others)
				pings.flows()
			}

			w.Apply("default", v4("10.5.0.0/16", "10.5.255.0")+carried(""))
			w.Apply("default", v4("10.4.0.0/15", "10.5.255.0")+carried(""))
			w.everywhere("the grown pool", func(r string) bool { return strings.HasPrefix(r, "unreachable 10.4.0.0/15") }, "unreachable 10.", 1)
			pings.flows()

			w.Apply("default", v4("10.4.0.0/15", "10.5.255.0")+"ipv6 {\n prefix = \"fd00:5::/48\"\n}\n"+carried(""))
			w.everywhere("IPv6 routes", func(r string) bool { return true }, "fd00:5:", others)
			w.everywhere("IPv4 routes", func(r string) bool { return strings.Contains(r, over) }, "10.5.", others)
			var both []*lab.Container
			for _, h := range w.Hosts {
				w.Eventually("a subnet of each family on "+h.Name, func(context.Context) error {
					lease, err := w.ownLease(h, "default")
					if err != nil {
						return err
					}
					if want := fmt.Sprintf("fd00:5:0:%x::/64", 256+int(lease.Subnet.Addr().As4()[2])); len(lease.Subnets) != 2 || lease.Subnets[1].String() != want {
						return fmt.Errorf("%v, want %s", lease.Subnets, want)
					}
					f, err := lab.ReadSubnetFile(h.SubnetFile("default"))
					if err == nil && len(f.Subnets()) != 2 {
						err = fmt.Errorf("subnet file with %v", f.Subnets())
					}
					return err
				})
				both = append(both, w.Container(h, "default"))
			}
			six := w.traffic(both, 1)
			pings.flows()

			for _, masq := range []bool{true, false} {
				for _, h := range w.Hosts {
					w.Must(os.WriteFile(h.ConfigFile(), []byte(h.Config(world.ShortLease, h.Network("default", fmt.Sprintf("  ip_masq = %t", masq)))), 0o644))
					w.Must(h.Agent().Signal(syscall.SIGHUP))
					w.Eventually("the rules of "+h.Name, func(ctx context.Context) error {
						rules, err := h.Exec(ctx, "iptables-save", "-t", "nat")
						if err == nil && strings.Contains(rules, "MASQUERADE") != masq {
							err = fmt.Errorf("masquerading is not %t:\n%s", masq, rules)
						}
						return err
					})
				}
				pings.flows()
				six.flows()
			}
			pings.stop()
			six.stop()
			for h, link := range links {
				if got := w.Link(h); got != link {
					t.Errorf("%s: device %s, before %s", h.Name, got, link)
				}
			}
			for _, route := range deleted() {
				if !strings.Contains(route, "unreachable") {
					t.Errorf("route deleted: %s", route)
				}
			}
			w.Settle("default")
			w.MatrixOf(both)
			for _, h := range w.Hosts {
				w.WaitHealth(h, 200)
			}
		})
	}
}

// TestPoolsShrink makes the pools of a network larger and smaller while containers ping each other: no ping is lost. Then
// it removes IPv6 by force. No packet leaves a host in plain, no device is touched, and no route of earlier pools is left,
// except the guard of a network that requires encryption where hosts had subnets.
func TestPoolsShrink(t *testing.T) {
	t.Parallel()
	for _, name := range append([]string{"required"}, world.Carrying...) {
		t.Run(name, func(t *testing.T) {
			backend, encryption := name, ""
			if name == "required" {
				backend, encryption = "wireguard", "encryption = \"required\"\n"
			}
			definition := func(pools ...string) (out string) {
				for _, pool := range pools {
					if strings.Contains(pool, ":") {
						out += fmt.Sprintf("ipv6 {\n prefix = %q\n}\n", pool)
						continue
					}
					out += fmt.Sprintf("ipv4 {\n prefix = %q\n min = \"10.5.1.0\"\n max = \"10.5.99.0\"\n}\n", pool)
				}
				return out + fmt.Sprintf("backend %q {}\n", backend) + encryption
			}
			w := newWorld(t, lab.Options{Hosts: 2})
			w.Start(func(h *lab.Host) []string {
				return []string{world.ShortLease, h.Network("default", definition("10.5.0.0/16"))}
			})
			links := map[*lab.Host]string{}
			for i, h := range w.Hosts {
				// What no route of leno leads to reaches the other host.
				_, err := h.Exec(w.Ctx, "ip", "route", "replace", "default", "via", w.Hosts[1-i].Addrs[0].String())
				w.Must(err)
				w.Container(h, "default")
				links[h] = w.Link(h)
			}
			w.Settle("default")

			// From the first address of a host's subnet, the agent may go on probing paths of the family that the network has just
			// lost, until it knows: to the first and the last addresses of the other subnet. Containers have those in between.
			isContainer := func(a netip.Addr) bool {
				last := a.As16()[15]
				return 0 < last && last < 0xfe &&
					(netip.MustParsePrefix("10.4.0.0/15").Contains(a) || netip.MustParsePrefix("fd00:5::/48").Contains(a))
			}
			stop := w.capture(func(addrs []netip.Addr) bool { return slices.ContainsFunc(addrs, isContainer) })
			first := w.Containers
			four := w.traffic(first, 0)
			var guards []string // of pools in which hosts had subnets
			change := func(flag []string, pools ...string) {
				t.Helper()
				w.Apply("default", definition(pools...), flag...)
				want := slices.Clone(guards)
				for _, pool := range pools {
					want = append(want, pool+" metric 16777216")
					if encryption != "" {
						want = append(want, pool+" metric 16777217")
					}
				}
				slices.Sort(want)
				for _, h := range w.Hosts {
					w.Eventually(h.Name+" to refuse packets to the pools alone", func(context.Context) error {
						var got []string
						for _, route := range w.Routes(h) {
							if f := strings.Fields(route); f[0] == "unreachable" {
								got = append(got, strings.Join([]string{f[1], "metric", f[slices.Index(f, "metric")+1]}, " "))
							}
						}
						if slices.Sort(got); !slices.Equal(got, want) {
							return fmt.Errorf("%q, want %q", got, want)
						}
						return nil
					})
				}
			}
			for range 3 {
				change(nil, "10.4.0.0/15")
				four.flows()
				change(nil, "10.5.0.0/16")
				four.flows()
			}
			change(nil, "10.5.0.0/16", "fd00:5::/48")
			w.everywhere("IPv6 routes", func(string) bool { return true }, "fd00:5:", 1)
			var both []*lab.Container
			for _, h := range w.Hosts {
				w.Eventually("a subnet of each family on "+h.Name, func(context.Context) error {
					f, err := lab.ReadSubnetFile(h.SubnetFile("default"))
					if err == nil && len(f.Subnets()) != 2 {
						err = fmt.Errorf("subnet file with %v", f.Subnets())
					}
					return err
				})
				both = append(both, w.Container(h, "default"))
			}
			six := w.traffic(both, 1)
			change(nil, "10.5.0.0/17", "fd00:5::/52")
			six.stop()
			four.stop()
			if encryption != "" {
				guards = []string{"fd00:5::/52 metric 16777217"}
			}
			change([]string{"-force"}, "10.5.0.0/17") // hosts take their leases again
			w.Linked(first)

			if plain := stop(); len(plain) > 0 && backend != "host-gw" {
				t.Errorf("%d packets between containers left a host in plain, from %s on", len(plain), plain[0])
			}
			for h, link := range links {
				if got := w.Link(h); got != link {
					t.Errorf("%s: device %s, before %s", h.Name, got, link)
				}
				w.WaitHealth(h, 200)
			}
		})
	}
}

// ownLease returns the host's lease as its own agent reports it.
func (w *testWorld) ownLease(h *lab.Host, network string) (api.Lease, error) {
	w.T.Helper()
	leases := w.Leases(h, network).Leases
	i := slices.IndexFunc(leases, func(l api.Lease) bool { return l.Own })
	if i < 0 {
		return api.Lease{}, fmt.Errorf("%s has no lease: %+v", h.Name, leases)
	}
	return leases[i], nil
}

// moved blocks until the host has another subnet of the network "default" than before.
func (w *testWorld) moved(h *lab.Host, before netip.Prefix) {
	w.T.Helper()
	w.Eventually(h.Name+" to have another subnet", func(context.Context) error {
		f, err := lab.ReadSubnetFile(h.SubnetFile("default")) // there is none for a moment
		if err == nil && f.Subnets()[0].Masked() == before {
			err = fmt.Errorf("%s", before)
		}
		return err
	})
}

// TestChangesRefused checks that a change that would take something from a host is refused with the
// reason, and made with -force. A host outside a pool range that shrank takes another subnet; the
// others keep theirs.
func TestChangesRefused(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	a, b := w.Hosts[0], w.Hosts[1]
	for h, gateway := range map[*lab.Host]string{a: "10.5.50.1/24", b: "10.5.150.1/24"} { // their former gateways
		w.Must(os.WriteFile(h.SubnetFile("default"), []byte("LENO_SUBNET="+gateway+"\n"), 0o644))
	}
	w.StartNetwork("vxlan")
	kept, lost := w.Subnet(a, "default"), w.Subnet(b, "default")
	narrow := strings.Replace(world.Plan("vxlan"), `{ prefix = "10.5.0.0/16" }`, "{\n prefix = \"10.5.0.0/16\"\n max = \"10.5.99.0\"\n}", 1)
	for _, tt := range []struct{ what, body, says string }{
		{"range", narrow, "host-b (" + lost.String() + ")"},
		{"family", "ipv4 { prefix = \"10.5.0.0/16\" }\nbackend \"vxlan\" {}", "addresses of one family"},
	} {
		what := tt.what
		file := w.Definition("default", tt.body)
		if out, err := a.Leno(w.Ctx, "network", "apply", file); err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "-force") {
			t.Errorf("%s: %v\n%s", what, err, out)
		}
		out, err := a.Leno(w.Ctx, "network", "plan", "-format=json", file)
		w.Must(err)
		var planned struct{ Networks []api.NetworkPlan }
		w.Must(json.Unmarshal([]byte(out), &planned))
		if p := planned.Networks[0]; p.Action != api.ActionUpdate || len(p.Hosts) != 2 || len(p.Refused) != 1 {
			t.Errorf("%s: planned %s", what, out)
		}
	}
	w.Linked(w.Containers)
	w.Apply("default", narrow, "-force")
	w.moved(b, lost)
	if got := w.Subnet(a, "default"); got != kept {
		t.Errorf("host-a: subnet %s, before %s", got, kept)
	}
	w.WaitLog(b, "its containers must be restarted")
	w.Eventually("the former lease to go", func(context.Context) error {
		pair, _, err := w.Consul.Client().KV().Get(world.LeaseKey("default", lost), nil)
		if err == nil && pair != nil {
			err = fmt.Errorf("%+v", pair)
		}
		return err
	})
	now := w.Subnet(b, "default")
	w.Eventually("host-a to follow", func(context.Context) error {
		if routes := fmt.Sprint(w.Routes(a)); !strings.Contains(routes, now.String()) || strings.Contains(routes, lost.String()) {
			return fmt.Errorf("%s", routes)
		}
		return nil
	})
	w.Must(w.Containers[1].Remove(w.Ctx))
	w.Containers = w.Containers[:1]
	w.Container(b, "default")
	w.Linked(w.Containers)
}
