package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func messages(list []api.Event) (out []string) {
	for _, v := range list {
		out = append(out, v.Message)
	}
	return out
}

func TestPeerEvents(t *testing.T) {
	lease := func(node string, slot int, change func(*registry.Lease)) registry.Lease {
		l := registry.Lease{Slot: uint64(slot), Subnets: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(slot), 0}), 24)},
			Node: node, NodeID: "id-" + node, PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(slot)})}, Session: "s"}
		if change != nil {
			change(&l)
		}
		return l
	}
	lapsed := func(l *registry.Lease) { l.Session = "" }
	moved := func(l *registry.Lease) { l.PublicIPs = []netip.Addr{netip.MustParseAddr("192.0.2.99")} }
	var many []registry.Lease
	for i := range 200 {
		many = append(many, lease(fmt.Sprintf("h%03d", i), i+1, nil))
	}
	for _, tt := range []struct {
		name        string
		before, now []registry.Lease
		want        []string
	}{
		{"nothing", many, many, nil},
		{"our own is no peer", nil, []registry.Lease{lease("own", 1, nil)}, nil},
		{"one more", nil, []registry.Lease{lease("b", 2, nil)}, []string{"b appeared with 10.5.2.0/24 at 192.0.2.2"}},
		{"one less", []registry.Lease{lease("b", 2, nil)}, nil, []string{"b left, it had 10.5.2.0/24"}},
		{"lapsed", []registry.Lease{lease("b", 2, nil)}, []registry.Lease{lease("b", 2, lapsed)}, []string{"the lease of b on 10.5.2.0/24 lapsed, its routes stay"}},
		{"returned elsewhere", []registry.Lease{lease("b", 2, lapsed)}, []registry.Lease{lease("b", 2, moved)},
			[]string{"b holds 10.5.2.0/24 again", "b moved from 192.0.2.2 to 192.0.2.99"}},
		{"another subnet", []registry.Lease{lease("b", 2, nil)}, []registry.Lease{lease("b", 2, lapsed), lease("b", 3, nil)},
			[]string{"b moved from 192.0.2.2 to 192.0.2.3", "b has 10.5.3.0/24 now, it had 10.5.2.0/24"}},
		{"many at once", nil, many, []string{"200 hosts appeared: h000, h001, h002, h003, h004, h005, h006, h007 and 192 more"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := messages(peerEvents(tt.before, tt.now, "id-own")); !slices.Equal(got, tt.want) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// TestEventsOfAHost follows the events of a host through the API.
func TestEventsOfAHost(t *testing.T) {
	ctx, store := context.Background(), memory.New()
	a := newHost(t, store, "a").slow()
	a.refresh = func() (config.Config, error) { return config.Config{}, errors.New("line 3 makes no sense") }
	a.start()
	a.ready()
	var index uint64
	// expect waits for an event with all words, after those that were expected before.
	expect := func(network, kind, severity string, words ...string) {
		t.Helper()
		eventually(t, func() error {
			list, err := a.client.Events(ctx, network)
			if err != nil {
				return err
			}
			for _, v := range list.Events {
				missing := func(w string) bool { return !strings.Contains(v.Message, w) }
				if v.Index > index && v.Network == network && v.Kind == kind && v.Severity == severity && !slices.ContainsFunc(words, missing) {
					index = v.Index
					return nil
				}
			}
			return fmt.Errorf("no event %s %s %q after %d in %+v", kind, severity, words, index, list.Events)
		})
	}
	subnet := a.subnet()
	expect("n", api.EventNetwork, api.Info, "taking part")
	expect("n", api.EventLease, api.Info, subnet.String())
	expect("n", api.EventPeer, api.Info, "0 other hosts")
	if list, err := a.client.Events(ctx, ""); err != nil || list.Events[0].Kind != api.EventAgent || list.Index < index {
		t.Errorf("%+v, %v", list, err)
	}
	_, err := a.client.Events(ctx, "nobodys")
	wantCode(t, "events of an unknown network", err, http.StatusNotFound, "nobodys", "n")
	b := newHost(t, store, "b").start()
	expect("n", api.EventPeer, api.Info, "b appeared with "+b.subnet().String())
	must(t, b.stop())
	lease, _, _ := mustRunner(t, b).lease.Get()
	store.EndSession(lease.Session)
	expect("n", api.EventPeer, api.Warning, "the lease of b on "+lease.Subnet().String()+" lapsed")
	must(t, store.Client().Revoke(ctx, "n", lease.Subnet()))
	expect("n", api.EventPeer, api.Info, "b left")

	lease, _, _ = mustRunner(t, a).lease.Get()
	store.EndSession(lease.Session)
	expect("n", api.EventLease, api.Warning, subnet.String(), "was lost")
	expect("n", api.EventLease, api.Info, subnet.String(), "again")
	must(t, store.Client().Revoke(ctx, "n", subnet))
	expect("n", api.EventLease, api.Critical, subnet.String(), "revoked")
	expect("n", api.EventLease, api.Critical, "before "+subnet.String(), "restarted")

	a.recorder.setReport(backend.Report{Writes: 1, Healed: []backend.Repair{{Fault: "device was deleted"}}})
	a.kick()
	expect("n", api.EventDrift, api.Warning, "device was deleted")
	a.recorder.setReport(backend.Report{})
	if errOf(a.client.Reload(ctx, false)) == nil {
		t.Error("reload was not refused")
	}
	c := a.config
	c.Log.Level = "WARN"
	index = 0
	must(t, a.agent.Reload(ctx, c))
	eventually(t, func() error {
		list, err := a.client.Events(ctx, "")
		if err != nil {
			return err
		}
		own := slices.DeleteFunc(list.Events, func(v api.Event) bool { return v.Kind != api.EventReload })
		if got := messages(own); !slices.Equal(got, []string{"reload refused: line 3 makes no sense", "configuration reloaded"}) {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	must(t, a.client.ReleaseLease(ctx, "n"))
	expect("n", api.EventLease, api.Warning, "released")
}
