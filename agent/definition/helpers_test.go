package definition

import (
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/alloc"
	"github.com/lenonet/leno/backend/hostgw"
	"github.com/lenonet/leno/backend/udp"
	"github.com/lenonet/leno/backend/vxlan"
	"github.com/lenonet/leno/backend/wireguard"
)

func backends() map[string]backend.Type {
	return map[string]backend.Type{"alloc": alloc.Type(), "host-gw": hostgw.Type(), "udp": udp.Type(), "vxlan": vxlan.Type(),
		"wireguard": wireguard.Type()}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
