package wireguard

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/reconcile"
	"github.com/lenonet/leno/backend/vxlan"
	"github.com/lenonet/leno/internal/testkit/backendtest"
)

// variants returns the type with WireGuard in the process, and with that of the kernel where the kernel has it. e2e/vm
// runs the tests on such a kernel.
func variants(t *testing.T) map[string]backend.Type {
	t.Helper()
	out := map[string]backend.Type{"process": newType(true)}
	has, err := kernel.HasFamily(kernelKind)
	if err != nil {
		t.Fatal(err)
	}
	if has {
		out["kernel"] = Type()
	}
	return out
}

func TestConformance(t *testing.T) {
	t.Parallel()
	sockets := t.TempDir()
	for name, kind := range variants(t) {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, IPv6 underlay %t", name, v6), func(t *testing.T) {
				t.Parallel()
				backendtest.Run(t, suite(apart(kind, sockets), v6))
			})
		}
	}
}

// apart returns the type with a directory of its own for each backend's control socket, because the devices of all hosts
// have the same name.
func apart(kind backend.Type, sockets string) backend.Type {
	made := kind.New
	kind.New = func(c backend.Config) (backend.Backend, error) {
		b, err := made(c)
		if err != nil {
			return nil, err
		}
		b.(*Backend).tunnel.socketDir, err = os.MkdirTemp(sockets, "")
		return b, err
	}
	return kind
}

func suite(kind backend.Type, v6 bool) backendtest.Suite {
	bad := func(good backend.Peer) map[string]backend.Peer {
		out := map[string]backend.Peer{}
		for reason, attributes := range map[string]string{
			"lack public_key":        `{"listen_port":51820}`,
			"not 32 bytes in base64": `{"public_key":"AAAA","listen_port":51820}`,
			"all zeros":              `{"public_key":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","listen_port":51820}`,
			"listen_port is 0":       `{"public_key":"xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="}`,
			"attributes are not":     `[]`,
		} {
			p := good
			p.Attributes = json.RawMessage(attributes)
			out[reason] = p
		}
		strange, taken := good, good
		strange.Subnets = prefixes("10.77.0.0/24")
		taken.Subnets = prefixes("10.5.1.0/24")
		out["outside the network"], out["our own"] = strange, taken
		return out
	}
	// None of the peers answers handshakes, which are sent again and again, and are slow with the race detector.
	crowd := map[bool]int{false: 100}[v6]
	partners := []backendtest.Partner{{Type: vxlan.Type()}, {Type: kind, Options: `{"listen_port":51821}`}}
	return backendtest.Suite{Type: kind, Crowd: crowd, IPv6Underlay: v6, Partners: partners, Dump: dumpPeers, Bad: bad}
}

// dumpPeers returns the configuration of the device's peers, one a line.
func dumpPeers(b backend.Backend) string {
	d := b.(*Backend).tunnel.device
	if d == nil {
		return ""
	}
	peers, err := (&peerTable{device: d}).List(context.Background())
	if err != nil {
		return err.Error()
	}
	return reconcile.Dump(peers, compareKeys)
}
