package store

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	lenoapi "github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// moveAway makes the host change its subnet: it reserves one that no host has and revokes the
// lease.
func (w *testWorld) moveAway(h *lab.Host, network string) (old, now netip.Prefix) {
	w.T.Helper()
	old = w.Subnet(h, network)
	leases, err := h.Leno(w.Ctx, "lease", "list")
	w.Must(err)
	for i := byte(200); !now.IsValid() || strings.Contains(leases, now.String()); i++ {
		now = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, i, 0}), 24)
	}
	_, err = h.Leno(w.Ctx, "reservation", "add", "-node="+h.Name, network, now.String())
	w.Must(err)
	_, err = h.Leno(w.Ctx, "lease", "revoke", network, old.String())
	w.Must(err)
	return old, now
}

// TestOnLostExit checks that an agent with on_lost = "exit" exits with an error when its lease is
// revoked, whether or not its service is in the catalogue, and leaves the datapath in place.
func TestOnLostExit(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	h := w.Hosts[0]
	w.Must(h.StartConsul(w.Ctx))
	w.Start(func(h *lab.Host) []string {
		return []string{"lease {\n  ttl     = \"10s\"\n  on_lost = \"exit\"\n}", h.Network("default", world.Plan("vxlan"))}
	})
	w.Settle("default")
	old, peer := w.Subnet(h, "default"), w.Subnet(w.Hosts[1], "default")
	_, err := h.Leno(w.Ctx, "lease", "revoke", "default", old.String())
	w.Must(err)
	err = h.Agent().Wait(w.Ctx)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v, want exit code 1", err)
	}
	words := regexp.MustCompile(`subnet ` + regexp.QuoteMeta(old.String()) + ` was lost, (\S+) taken instead, and on_lost is "exit"`).FindStringSubmatch(h.Agent().Output())
	if words == nil || words[1] == old.String() {
		t.Fatal("the last words do not name the subnets and why")
	}
	subnet := netip.MustParsePrefix(words[1])
	// The device may have either subnet, depending on how far the agent came; the next agent
	// corrects it.
	if now, want := w.stands(h), peer.String()+" via "+peer.Addr().String()+" dev leno-default"; !strings.Contains(now, want) {
		t.Errorf("the agent ended, and %q is not in\n%s", want, now)
	}
	// The peer has a route to the new subnet only, and this host holds its lease.
	w.Eventually("the peer to follow", func(context.Context) error {
		routes := strings.Join(w.Routes(w.Hosts[1]), "\n")
		if !strings.Contains(routes, subnet.String()) || strings.Contains(routes, old.String()) {
			return errors.New(routes)
		}
		return nil
	})
	w.Must(h.RestartAgent())
	w.Eventually("the next agent to go on with the new one", func(context.Context) error {
		if now := w.Subnet(h, "default"); now != subnet {
			return fmt.Errorf("it has %s, not %s", now, subnet)
		}
		return nil
	})
}

// TestStrangerWithASession writes a lease record that names a live host by its node id, is newer than that host's and is
// held by another session. No route to the live host changes, and that host reports the record.
func TestStrangerWithASession(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.StartNetwork("vxlan")
	a, b := w.Hosts[0], w.Hosts[1]
	client := w.Consul.Client()
	pair, _, err := client.KV().Get(world.LeaseKey("default", w.Subnet(b, "default")), nil)
	w.Must(err)
	session, _, err := client.Session().CreateNoChecks(&api.SessionEntry{TTL: "10m"}, nil)
	w.Must(err)
	t.Cleanup(func() { _, _ = client.Session().Destroy(session, nil) })
	slot := w.freeSlots(1)[0]
	old := strings.TrimSuffix(w.Subnet(b, "default").String(), ".0/24")
	value := strings.ReplaceAll(string(pair.Value), old+".0/24", fmt.Sprintf("10.5.%d.0/24", slot))
	value = v6Subnet.ReplaceAllString(value, fmt.Sprintf(`"fd00:5:0:%x::/64"`, slot))
	key := world.LeaseKey("default", netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", slot)))
	deleted := w.RouteEvents(a)
	ok, _, err := client.KV().Acquire(&api.KVPair{Key: key, Value: []byte(value), Session: session}, nil)
	w.Must(err)
	if !ok {
		t.Fatal("the record was not locked")
	}
	w.Eventually("the record to be seen", func(context.Context) error {
		if n := len(w.Leases(a, "default").Leases); n != 4 {
			return fmt.Errorf("%d leases: %+v", n, w.Leases(a, "default").Skipped)
		}
		return nil
	})
	w.WaitHealth(b, 429, fmt.Sprintf("leno lease revoke default 10.5.%d.0/24", slot))
	w.Matrix()
	if gone := deleted(); len(gone) != 0 {
		t.Errorf("routes were deleted: %q", gone)
	}
	_, err = b.Leno(w.Ctx, "lease", "revoke", "default", fmt.Sprintf("10.5.%d.0/24", slot))
	w.Must(err)
	w.WaitHealth(b, 200)
}

// TestStrangerTakesMAC writes a lease record, older than a live host's and held by a session, which takes that host's MAC
// address later. Packets to the address still go to the live host, also from a host whose agent restarts then.
func TestStrangerTakesMAC(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.StartNetwork("vxlan")
	a, b, victim := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	client := w.Consul.Client()
	session, _, err := client.Session().CreateNoChecks(&api.SessionEntry{TTL: "10m"}, nil)
	w.Must(err)
	t.Cleanup(func() { _, _ = client.Session().Destroy(session, nil) })
	recordOf := func(h *lab.Host) string {
		pair, _, err := client.KV().Get(world.LeaseKey("default", w.Subnet(h, "default")), nil)
		w.Must(err)
		if pair == nil {
			return ""
		}
		return string(pair.Value)
	}
	slot, subnet, before := w.freeSlots(1)[0], w.Subnet(victim, "default"), recordOf(victim)
	write := func(mac string) {
		value := v6Subnet.ReplaceAllString(before, fmt.Sprintf(`"fd00:5:0:%x::/64"`, slot))
		value = vtepMAC.ReplaceAllString(value, fmt.Sprintf(`"vtep_mac":%q`, mac))
		value = nodeID.ReplaceAllString(value, `"node_id":"00000000-0000-0000-0000-000000000009"`)
		value = strings.NewReplacer(subnet.String(), fmt.Sprintf("10.5.%d.0/24", slot),
			victim.Addrs[0].String(), "192.0.2.99", victim.Addrs[1].String(), "fd00:c0:2::99", `"host-c"`, `"stranger"`).Replace(value)
		key := world.LeaseKey("default", netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", slot)))
		ok, _, err := client.KV().Acquire(&api.KVPair{Key: key, Value: []byte(value), Session: session}, nil)
		w.Must(err)
		if !ok {
			t.Fatal("the record was not locked")
		}
	}
	write("02:00:00:00:00:99")
	w.WaitPeers(a, "default", 3)
	w.moveAway(victim, "default") // its record is newer than the stranger's then
	mac := ""
	w.Eventually("the next subnet", func(context.Context) error {
		found := vtepMAC.FindStringSubmatch(recordOf(victim))
		if found == nil {
			return errors.New("no record yet")
		}
		mac = found[1]
		return nil
	})
	now := w.Subnet(victim, "default")
	for _, h := range []*lab.Host{a, b} {
		w.Eventually("the routes of "+h.Name+" to follow", func(context.Context) error {
			if routes := fmt.Sprint(w.Routes(h)); !strings.Contains(routes, now.String()) || strings.Contains(routes, subnet.String()) {
				return errors.New(routes)
			}
			return nil
		})
	}
	ignored := func(h *lab.Host) {
		t.Helper()
		w.Eventually("the stranger to be left out on "+h.Name, func(ctx context.Context) error {
			fdb, err := h.Exec(ctx, "bridge", "fdb", "show", "dev", "leno-default")
			if err != nil || !strings.Contains(fdb, mac+" dst "+victim.Addrs[0].String()) {
				return fmt.Errorf("%v: %s", err, fdb)
			}
			_, body, err := h.Get(ctx, "/v1/network/default/peers")
			if err == nil && !strings.Contains(body, "vtep_mac") {
				err = fmt.Errorf("no peer is refused: %s", body)
			}
			return err
		})
	}
	deleted := w.RouteEvents(a)
	write(mac)
	ignored(a)
	ignored(b)
	w.Must(b.StopAgent(w.Ctx))
	w.Must(b.RestartAgent())
	w.Must(b.WaitReady(w.Ctx))
	ignored(b)
	for _, gone := range deleted() {
		if !strings.Contains(gone, fmt.Sprintf("10.5.%d.", slot)) && !strings.Contains(gone, fmt.Sprintf("fd00:5:0:%x:", slot)) {
			t.Errorf("a route was deleted: %q", gone)
		}
	}
}

// nodeID matches a host's id in its record.
var nodeID = regexp.MustCompile(`"node_id":"[^"]*"`)

// vtepMAC matches the MAC address of a host's VXLAN device in its record.
var vtepMAC = regexp.MustCompile(`"vtep_mac":"([0-9a-f:]+)"`)

// v6Subnet matches an IPv6 subnet of the test's pool in a record.
var v6Subnet = regexp.MustCompile(`"fd00:5:0:[0-9a-f]+::/64"`)

// TestStranger writes well-formed lease records without a session that claim a live host's MAC
// address, IP address or name. No route to a live host changes.
func TestStranger(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.StartNetwork("vxlan")
	a, b := w.Hosts[0], w.Hosts[1]
	pair, _, err := w.Consul.Client().KV().Get(world.LeaseKey("default", w.Subnet(b, "default")), nil)
	w.Must(err)
	own := strings.TrimSuffix(strings.TrimSuffix(w.Subnet(b, "default").String(), "0/24"), ".")
	deleted := w.RouteEvents(a)
	free := w.freeSlots(3)
	for i, change := range []*strings.Replacer{
		strings.NewReplacer(`"host-b"`, `"aaa"`),
		strings.NewReplacer(`"host-b"`, `"aab"`, b.Addrs[0].String(), "192.0.2.99"),
		strings.NewReplacer(b.Addrs[0].String(), "192.0.2.99"),
	} {
		// Each record has its own slot and node id.
		slot := fmt.Sprintf("10.5.%d", free[i])
		v6 := fmt.Sprintf("fd00:5:0:%x::/64", free[i])
		value := string(pair.Value)
		value = strings.ReplaceAll(value, own+".0/24", slot+".0/24")
		value = v6Subnet.ReplaceAllString(value, `"`+v6+`"`)
		id, rest, _ := strings.Cut(value[strings.Index(value, `"node_id":"`)+len(`"node_id":"`):], `"`)
		_ = rest
		value = change.Replace(strings.ReplaceAll(value, id, fmt.Sprintf("00000000-0000-0000-0000-00000000000%d", i)))
		_, err := w.Consul.Client().KV().Put(&api.KVPair{Key: world.LeaseKey("default", netip.MustParsePrefix(slot+".0/24")), Value: []byte(value)}, nil)
		w.Must(err)
	}
	w.Eventually("the strangers to be seen", func(context.Context) error {
		if n := len(w.Leases(a, "default").Leases); n != 6 {
			return fmt.Errorf("%d leases: %+v", n, w.Leases(a, "default").Skipped)
		}
		return nil
	})
	w.Eventually("a look at the datapath", func(ctx context.Context) error {
		_, body, err := a.Get(ctx, "/v1/network/default/peers")
		if err == nil && !strings.Contains(body, "vtep_mac") {
			err = fmt.Errorf("no peer is refused: %s", body)
		}
		return err
	})
	w.WaitHealth(a, 429, "vtep_mac")
	w.Matrix()
	if gone := deleted(); len(gone) != 0 {
		t.Errorf("routes were deleted: %q", gone)
	}
}

// freeSlots returns n slots that no host uses.
func (w *testWorld) freeSlots(n int) (free []int) {
	taken := map[netip.Prefix]bool{}
	for _, h := range w.Hosts {
		taken[w.Subnet(h, "default")] = true
	}
	for slot := 255; len(free) < n; slot-- {
		if !taken[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(slot)}), 24)] {
			free = append(free, slot)
		}
	}
	return free
}

// TestDefinitionChanges changes a network's backend repeatedly: every host follows at once and
// nothing of the previous backend stays. A network that is deleted right after a change is not
// restored by a host that was busy with the change.
func TestDefinitionChanges(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	w.StartNetwork("vxlan")
	a := w.Hosts[0]
	client := w.Consul.Client().KV()
	for _, backend := range []string{`{"type":"vxlan","vni":7}`, `{"type":"host-gw"}`, `{"type":"udp"}`, `{"type":"vxlan"}`, `{"type":"udp","port":9000}`} {
		n := w.redefine(backend)
		changed := time.Now()
		for _, h := range w.Hosts {
			w.Eventually(h.Name+" to carry "+backend, func(ctx context.Context) error {
				// A peer that was faster has the new backend in its lease already, so the host's
				// own state counts.
				var own lenoapi.Network
				if err := world.GetJSON(ctx, h, "/v1/network/default", &own); err != nil {
					return err
				}
				if own.Local == nil || own.Local.ModifyIndex < n.ModifyIndex {
					return fmt.Errorf("%+v, not version %d", own.Local, n.ModifyIndex)
				}
				var list struct {
					Peers []struct{ Backend, Skipped string }
				}
				if err := world.GetJSON(ctx, h, "/v1/network/default/peers", &list); err != nil {
					return err
				}
				if len(list.Peers) != 1 || list.Peers[0].Backend != n.Backend.Type || list.Peers[0].Skipped != "" {
					return fmt.Errorf("%+v", list.Peers)
				}
				return nil
			})
		}
		w.Settle("default")
		t.Logf("%s: followed after %s", backend, time.Since(changed).Round(time.Millisecond))
		for _, h := range w.Hosts {
			w.Eventually("the device of "+backend+" on "+h.Name, func(context.Context) error {
				if link := w.Link(h); (link == "none") != (n.Backend.Type == "host-gw") {
					return fmt.Errorf("device %s", link)
				}
				return nil
			})
		}
	}
	if _, err := a.Leno(w.Ctx, "network", "delete", "-force", "default"); err != nil {
		t.Fatal(err)
	}
	for _, h := range w.Hosts {
		w.WaitHealth(h, 503, "leno network apply")
		w.waitNoRoutes(h)
	}
	if pair, _, err := client.Get("leno/networks/default", nil); err != nil || !strings.Contains(string(pair.Value), `"deleted":`) {
		t.Errorf("the network is back: %v, %v", pair, err)
	}
}
