package agenttest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/lenonet/leno/registry"
)

// Plan returns the plan of these pools, each with the default size of its subnets.
func Plan(t testing.TB, pools ...string) registry.Plan {
	t.Helper()
	var p registry.Plan
	for _, pool := range pools {
		p = append(p, registry.Pool{Prefix: netip.MustParsePrefix(pool)})
	}
	p, err := p.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Backend returns a backend object. options is JSON, such as `{"vni":7}`, or "" for none.
func Backend(t testing.TB, kind, options string) registry.Backend {
	t.Helper()
	b, err := registry.NewBackend(kind, []byte(options))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Lease returns the lease of a host in network n on a slot, such as 10.5.2.0/24 for slot 2. The last byte of the host's
// address is the first one of its name.
func Lease(host string, slot uint64, session string, index uint64) registry.Lease {
	return registry.Lease{
		Network:     "n",
		Slot:        slot,
		Subnets:     []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", slot))},
		Node:        host,
		NodeID:      "id-" + host,
		PublicIPs:   []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, host[0]})},
		MTU:         1450,
		Backend:     registry.Backend{Type: "alloc", Object: []byte(`{"type":"alloc"}`)},
		Session:     session,
		ModifyIndex: index,
	}
}

// Carriage returns the backends of a definition. options is JSON with the options of the backend, such as `{"vni":7}`, and
// with the members "epoch" and "switch" of a definition's record.
func Carriage(t testing.TB, kind, options string) (c registry.Carriage) {
	t.Helper()
	all := map[string]json.RawMessage{}
	if options != "" {
		if err := json.Unmarshal([]byte(options), &all); err != nil {
			t.Fatal(err)
		}
	}
	record := map[string]any{}
	for _, name := range []string{"epoch", "switch"} {
		if value, ok := all[name]; ok {
			record[name] = value
			delete(all, name)
		}
	}
	own, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	record["backend"] = Backend(t, kind, string(own))
	whole, err := json.Marshal(record)
	if err == nil {
		err = json.Unmarshal(whole, &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}
