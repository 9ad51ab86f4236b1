package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lenonet/leno/registry"
)

func TestRawRequests(t *testing.T) {
	a := onSocket(t)
	for _, tt := range []struct {
		name, method, path, body string
		code                     int
		says                     string
	}{
		{"unknown endpoint", "GET", "/v1/nothing", "", 404, "no such endpoint"},
		{"a path with an empty name", "GET", "/v1/network//leases", "", 404, "no such endpoint: GET /v1/network//leases"},
		{"two slashes", "GET", "//", "", 404, "no such endpoint"},
		{"a path with dots", "PUT", "/v1/networks/../agent/reload", "", 404, "no such endpoint"},
		{"events of an unknown network", "GET", "/v1/agent/events?network=nobodys", "", 404, "known are n"},
		{"wrong method", "POST", "/v1/networks", "", 405, "/v1/networks takes GET, HEAD, not POST"},
		{"bad subnet", "GET", "/v1/network/n/lease/10.5.1.0", "", 400, "subnet"},
		{"no JSON", "PUT", "/v1/network/m", "{", 400, "request body"},
		{"no object", "PUT", "/v1/network/m", `[]`, 400, `"request body: it is of type array, want object"`},
		{"a member of another type", "POST", "/v1/agent/trace", `{"port":"80"}`, 400, `"request body: port: it is of type string, want integer"`},
		{"no address", "POST", "/v1/agent/trace", `{"source":"x","destination":"10.5.1.2"}`, 400, `"request body: source: ParseAddr`},
		{"an address of another type", "POST", "/v1/agent/trace", `{"destination":1}`, 400, `"request body: destination: it is of type number, want string"`},
		{"no prefix in a list", "PUT", "/v1/network/m", `{"modify_index":0,"pools":[{"prefix":"10.7.0.0"}]}`, 400, `"request body: pools: `},
		{"a reservation without a subnet", "PUT", "/v1/network/m",
			`{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"recorder"},"reservations":[{"node":"x"}]}`, 400, `"reservations: subnet is missing"`},
		{"unknown member", "PUT", "/v1/network/m", `{"poolz":[]}`, 400, "poolz"},
		{"another name", "PUT", "/v1/network/m", `{"name":"k"}`, 400, "contradicts"},
		{"no pools", "PUT", "/v1/network/m", `{}`, 400, "pool"},
		{"no backend", "PUT", "/v1/network/m", `{"pools":[{"prefix":"10.7.0.0/22"}]}`, 400, `backend is missing: want an object with a type, one of metered, other, recorder`},
		{"no backend to plan", "POST", "/v1/network/m/plan", `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":null}`, 400, "backend is missing"},
		{"a definition as it is shown during a switch", "PUT", "/v1/network/m",
			`{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"recorder"},"switch_to":{"type":"other"}}`, 400, "switch_to: only leno sets it"},
		{"a definition as a newer agent shows it", "POST", "/v1/network/m/plan",
			`{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"recorder"},"local":{"new_field":1}}`, 200, `"`},
		{"a backend without a type", "PUT", "/v1/network/m", `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"vni":2}}`, 400, "backend: the type is missing: want one of metered, other, recorder"},
		{"an unknown backend", "PUT", "/v1/network/m", `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"pigeon"}}`, 400, `backend: this version of leno has no type \"pigeon\": want one of metered, other, recorder`},
		{"a backend that is no object", "PUT", "/v1/network/m", `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":"vxlan"}`, 400, `"backend: not a JSON object"`},
		{"an unknown encryption", "PUT", "/v1/network/m", `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"recorder"},"encryption":"optional"}`, 400, `is neither`},
		{"a backend that does not encrypt", "PUT", "/v1/network/m", `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"recorder"},"encryption":"required"}`, 400, `backend recorder does not encrypt`},
		{"an MTU too small for IPv6", "PUT", "/v1/network/m", `{"pools":[{"prefix":"10.7.0.0/22"},{"prefix":"fd00:7::/48"}],"backend":{"type":"recorder","mtu":1000}}`, 400, `mtu: is 1000, and pool fd00:7::/48 needs at least 1280`},
		{"such a backend to plan", "POST", "/v1/network/m/plan", `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"recorder"},"encryption":"required"}`, 400, `backend recorder does not encrypt`},
		{"bad name", "PUT", "/v1/network/-m", `{}`, 400, "name"},
		{"huge", "PUT", "/v1/network/m", `{"name":"` + strings.Repeat("m", 1<<20) + `"}`, 413, "larger than 1048576 bytes"},
		{"huge and no JSON", "PUT", "/v1/network/m", strings.Repeat("m", 1<<20+1), 413, "larger than 1048576 bytes"},
		{"huge and not read", "PUT", "/v1/agent/reload", strings.Repeat("m", 1<<20+1), 413, "larger than 1048576 bytes"},
		{"no action on a switch", "PUT", "/v1/network/n/switch", `{}`, 400, "want stop, continue"},
		{"an unknown action on a switch", "PUT", "/v1/network/n/switch", `{"action":"turn"}`, 400, "turn"},
		{"reservation for no host", "PUT", "/v1/network/n/reservation/10.5.3.0-24", `{}`, 400, "node"},
		{"reservation elsewhere", "PUT", "/v1/network/n/reservation/10.5.3.0-24", `{"subnet":"10.5.2.0/24","node":"x"}`, 400, "contradicts"},
		{"reservation of a name no host has", "PUT", "/v1/network/n/reservation/10.5.3.0-24", `{"node":"host b"}`, 400, "is not a node name"},
		{"reservation of an id no host has", "PUT", "/v1/network/n/reservation/10.5.3.0-24", `{"node_id":"host-b"}`, 400, "is not a node id"},
		{"network with a reservation for no host", "PUT", "/v1/network/m",
			`{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"recorder"},"reservations":[{"subnet":"10.7.1.0/24","node_id":"b"}]}`, 400, "is not a node id"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, body := a.request(tt.method, tt.path, tt.body)
			if code != tt.code || !strings.Contains(body, tt.says) || !strings.HasPrefix(body, "{") {
				t.Errorf("%d %s", code, body)
			}
		})
	}
}

// TestNetworksBeforeTheWatchShowsThem: a network that is in use is listed although the watch of all networks does not
// show it yet.
func TestNetworksBeforeTheWatchShowsThem(t *testing.T) {
	h := newHost(t, nil)
	h.prepare()
	d := directory{agent: h.agent, store: h.registry}
	known, _ := h.agent.Networks()
	for _, tt := range []struct {
		name string
		set  Networks
	}{
		{"not yet", Networks{Index: 1}},
		{"shown", known},
	} {
		if got := d.knownNetworks(tt.set); len(got) != 1 || got[0].Name != "n" {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
	lost := Networks{Index: known.Index + 100}
	if got := d.knownNetworks(lost); len(got) != 1 {
		t.Errorf("a network that the store has lost is not listed: %+v", got)
	}
	lost.Deleted = []registry.Deletion{{Network: "n", ModifyIndex: lost.Index}}
	if got := d.knownNetworks(lost); len(got) != 0 {
		t.Errorf("a deleted network is still listed: %+v", got)
	}
}

// TestNothingIsNull: members without a value are left out or empty, also those of a network that waits for a lease.
func TestNothingIsNull(t *testing.T) {
	h := newHost(t, nil)
	h.join(h.define("waiting", "10.9.0.0/16"))
	h.serve("127.0.0.1:0")
	for _, path := range []string{"networks", "network/waiting", "network/waiting/peers", "network/waiting/reservations",
		"agent/events", "agent/config", "agent/metrics"} {
		if status, body := h.request("GET", "/v1/"+path, ""); status != 200 || strings.Contains(body, "null") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// TestSkippedAreShort: records of any size are shown in a few bytes.
func TestSkippedAreShort(t *testing.T) {
	bad := []registry.BadRecord{{Key: "leno/leases/n/h-1" + strings.Repeat("k", 100_000), Reason: strings.Repeat("r", 5000)}}
	for _, s := range skippedRecords(bad) {
		if len(s.Key) > registry.MaxShownKey || len(s.Reason) > registry.MaxShownReason {
			t.Fatalf("the API shows %d and %d bytes", len(s.Key), len(s.Reason))
		}
	}
}

// readOnlyStore is a store that reads networks that are defined elsewhere.
type readOnlyStore struct{ registry.Registry }

func (s readOnlyStore) As(string) registry.Registry { return s }

func (readOnlyStore) PutNetwork(context.Context, registry.Network, ...registry.Reservation) error {
	return fmt.Errorf("define network: %w", registry.ErrNotSupported)
}

func (readOnlyStore) DeleteNetwork(context.Context, string) error {
	return fmt.Errorf("delete network: %w", registry.ErrNotSupported)
}

func (readOnlyStore) Revoke(context.Context, string, netip.Prefix) error {
	return fmt.Errorf("revoke lease: %w", registry.ErrNotSupported)
}

func (readOnlyStore) AddReservation(context.Context, registry.Network, registry.Reservation, bool) error {
	return fmt.Errorf("add reservation: %w", registry.ErrNotSupported)
}

func (readOnlyStore) RemoveReservation(context.Context, string, netip.Prefix) error {
	return fmt.Errorf("remove reservation: %w", registry.ErrNotSupported)
}

func TestRequestsThatTheStoreDoesNotSupport(t *testing.T) {
	h := newHost(t, nil)
	h.options.Registry, h.agent.store = readOnlyStore{h.registry}, readOnlyStore{h.registry}
	h.serve("unix://" + filepath.Join(t.TempDir(), "leno.sock"))
	for _, tt := range []struct{ method, path, body, says string }{
		{"PUT", "/v1/network/m", `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"recorder"}}`, "define network"},
		{"DELETE", "/v1/network/n?force=true", "", "delete network"},
		{"DELETE", "/v1/network/n/lease/10.5.1.0-24", "", "revoke lease"},
		{"PUT", "/v1/network/n/reservation/10.5.3.0-24", `{"node":"x"}`, "add reservation"},
		{"DELETE", "/v1/network/n/reservation/10.5.3.0-24", "", "remove reservation"},
	} {
		code, body := h.request(tt.method, tt.path, tt.body)
		if code != http.StatusNotImplemented || !strings.Contains(body, tt.says+": not supported by this store") {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, code, body)
		}
	}
}
