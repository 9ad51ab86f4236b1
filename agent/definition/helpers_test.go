package definition

import (
	"net/netip"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/alloc"
	"github.com/lenonet/leno/backend/hostgw"
	"github.com/lenonet/leno/backend/udp"
	"github.com/lenonet/leno/backend/vxlan"
	"github.com/lenonet/leno/registry"
)

func backends() map[string]backend.Type {
	return map[string]backend.Type{"alloc": alloc.Type(), "host-gw": hostgw.Type(), "udp": udp.Type(), "vxlan": vxlan.Type()}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustPlan(t testing.TB, prefixes ...string) registry.Plan {
	t.Helper()
	var p registry.Plan
	for _, s := range prefixes {
		p = append(p, registry.Pool{Prefix: netip.MustParsePrefix(s)})
	}
	p, err := p.Normalize()
	must(t, err)
	return p
}

func mustBackend(t testing.TB, kind, options string) registry.Backend {
	t.Helper()
	b, err := registry.NewBackend(kind, []byte(options))
	must(t, err)
	return b
}
