package udp

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/vxlan"
	"github.com/lenonet/leno/internal/testkit/backendtest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	partners := []backendtest.Partner{{Type: vxlan.Type()}}
	for _, v6 := range []bool{false, true} {
		crowd := map[bool]int{false: 1000}[v6]
		t.Run(fmt.Sprintf("IPv6 underlay %t", v6), func(t *testing.T) {
			t.Parallel()
			backendtest.Run(t, backendtest.Suite{Type: Type(), Crowd: crowd, IPv6Underlay: v6, Partners: partners, Bad: func(good backend.Peer) map[string]backend.Peer {
				noPort, strange, taken := good, good, good
				noPort.Attributes = json.RawMessage(`{}`)
				strange.Subnets = prefixes("10.77.0.0/24")
				taken.Subnets = prefixes("10.5.1.0/24")
				return map[string]backend.Peer{"port": noPort, "outside the network": strange, "our own": taken}
			}})
		})
	}
}
