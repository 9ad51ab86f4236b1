package definition

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/flannel"
)

// flannelLease is the lease of a host that runs flannel with the backend kind in n.
func flannelLease(t *testing.T, n registry.Network, kind string) registry.Lease {
	t.Helper()
	value := `{"PublicIP":"192.0.2.9","BackendType":"` + kind + `","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}`
	l, foreign, err := flannel.ParseLease(n, "10.5.34.0-24", []byte(value))
	must(t, err)
	if !foreign || !l.Foreign {
		t.Fatalf("%+v is not foreign", l)
	}
	l.Session = "flannel"
	return l
}

// TestFlannelHosts: a change that cuts off hosts with flannel is refused unless it is forced.
func TestFlannelHosts(t *testing.T) {
	kinds := backends()
	const toUDP = `{"switch":{"to":{"type":"udp"}}}`
	for _, tt := range []struct {
		name, old, options string // of vxlan
		kind, wanted       string
		runs               string // by the host with flannel; vxlan by default
		refused            bool
	}{
		{name: "another backend", kind: "udp", refused: true},
		{name: "another backend after a switch", options: `{"epoch":{"number":1}}`, kind: "udp", refused: true},
		{name: "another port", kind: "vxlan", wanted: `{"port":4789}`, refused: true},
		{name: "an option that changes in place", kind: "vxlan", wanted: `{"direct_routing":true}`},
		{name: "the same during a switch", options: toUDP, kind: "udp"},
		{name: "back", options: toUDP, kind: "vxlan"},
		{name: "forward again", options: `{"switch":{"to":{"type":"udp"},"direction":"back"}}`, kind: "udp", refused: true},
		{name: "a third backend", options: toUDP, kind: "host-gw", refused: true},
		{name: "a host that was cut off before", kind: "udp", runs: "host-gw"},
	} {
		if tt.runs == "" {
			tt.runs = "vxlan"
		}
		old := switchable(t, "vxlan", orEmpty(tt.options))
		c := Change{Old: old, New: switchable(t, tt.kind, orEmpty(tt.wanted)), Backends: kinds,
			Leases: []registry.Lease{changed(old, "a", 10, true), flannelLease(t, old, tt.runs)}}.Gradual()
		refused := false
		for _, r := range c.Plan().Refused {
			if strings.Contains(r.Reason, "flannel-192.0.2.9 (10.5.34.0/24) would be cut off") {
				refused = r.Force && r.Way != ""
			}
		}
		if refused != tt.refused {
			t.Errorf("%s: %+v", tt.name, c.Plan().Refused)
		}
	}
}

// TestFlannelFamilies: adding or removing an address family is refused while hosts run flannel, and gives them no subnet.
func TestFlannelFamilies(t *testing.T) {
	six := registry.Pool{Prefix: netip.MustParsePrefix("fd00:5::/48")}
	one := switchable(t, "vxlan", "{}")
	both := one
	both.Plan = append(slices.Clone(one.Plan), six)
	var err error
	both.Plan, err = both.Plan.Normalize()
	must(t, err)
	const reason = "flannel-192.0.2.9 (10.5.34.0/24) would be cut off: each " + cannotFollow
	for _, tt := range []struct {
		name     string
		old, new registry.Network
		away     bool
		refused  bool
	}{
		{name: "added", old: one, new: both, refused: true},
		{name: "removed", old: both, new: one, refused: true},
		{name: "added after the host", old: one, new: both, away: true},
		{name: "unchanged", old: both, new: both},
	} {
		foreign := flannelLease(t, one, "vxlan")
		if tt.away {
			foreign.Session = ""
		}
		p := Change{Old: tt.old, New: tt.new, Backends: backends(), Leases: []registry.Lease{foreign}}.Plan()
		refused := slices.ContainsFunc(p.Refused, func(r api.Refusal) bool { return r.Reason == reason && r.Force })
		if refused != tt.refused {
			t.Errorf("%s: %+v", tt.name, p.Refused)
		}
		for _, h := range p.Hosts {
			if what := strings.Join(h.What, "; "); strings.Contains(what, "gains") {
				t.Errorf("%s: %s", tt.name, what)
			}
		}
	}
}

func orEmpty(options string) string {
	if options == "" {
		return "{}"
	}
	return options
}

// TestEndWithFlannel: a switch that flannel hosts cannot follow is neither ended nor complete, and one back to what
// they run is.
func TestEndWithFlannel(t *testing.T) {
	kinds := backends()
	for _, tt := range []struct {
		name, options  string
		moved, refused bool
	}{
		{name: "forward", options: `{"switch":{"to":{"type":"udp"}}}`, refused: true},
		{name: "back", options: `{"switch":{"to":{"type":"udp"},"direction":"back"}}`, moved: true},
		{name: "the second switch", options: `{"epoch":{"number":1},"switch":{"to":{"type":"udp"}}}`, refused: true},
		{name: "back in the second switch", options: `{"epoch":{"number":1},"switch":{"to":{"type":"udp"},"direction":"back"}}`, moved: true},
	} {
		n := switchable(t, "vxlan", tt.options)
		leases := []registry.Lease{changed(n, "a", 10, true), flannelLease(t, n, "vxlan")}
		leases[0].Backend = agenttest.Backend(t, "vxlan", `{}`)
		def := carriage.Of(n.Carriage())
		if moved := def.IsMoved(leases[1].Backend.Options()); moved != tt.moved {
			t.Errorf("%s: moved %t", tt.name, moved)
		}
		if ready, fault := def.Current.Ready("vxlan", leases[1].Backend.Options()); !ready {
			t.Errorf("%s: the host cannot be reached: %s", tt.name, fault)
		}
		what := strings.Join(Progress(n, leases, kinds).Hosts[1].What, ";")
		if strings.HasPrefix(what, "stays with vxlan: it runs flannel") == tt.moved {
			t.Errorf("%s: %s", tt.name, what)
		}
		ended, err := ChangeSwitch(n, api.EndSwitch, time.Now(), nil, kinds)
		must(t, err)
		err = CheckFollowers(n, ended, leases, kinds)
		if refused := errors.Is(err, ErrSwitch) && strings.Contains(err.Error(), "flannel-192.0.2.9"); refused != tt.refused {
			t.Errorf("%s: %v", tt.name, err)
		}
		leases[1].Session = ""
		if err := CheckFollowers(n, ended, leases, kinds); err != nil {
			t.Errorf("%s, without the host: %v", tt.name, err)
		}
	}
}
