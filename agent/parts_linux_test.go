package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestReadKernelState reads a kernel from which each step removes more.
func TestReadKernelState(t *testing.T) {
	ns := nstest.New(t)
	pools := []netip.Prefix{netip.MustParsePrefix("10.5.0.0/20"), netip.MustParsePrefix("fd00:5::/48")}
	addrs := []netip.Addr{netip.MustParseAddr("10.5.1.0"), netip.MustParseAddr("fd00:5:0:1::")}
	for _, tt := range []struct {
		name, change string
		want         datapath.KernelState
	}{
		{"nothing of the network", `
			ip link add other type bridge
			ip link set other up
			ip route add 10.5.2.0/24 dev other
			ip route add 10.6.0.0/24 dev other proto 108`, datapath.KernelState{}},
		{"a datapath that no process reads", `
			ip tuntap add leno-n mode tun
			ip addr add 10.5.1.0/32 dev leno-n
			ip addr add fd00:5:0:1::/128 dev leno-n nodad
			ip link set leno-n up
			ip route add unreachable 10.5.0.0/20 proto 108 metric 16777216
			ip route add unreachable fd00:5::/48 proto 108 metric 16777216
			ip route add 10.5.3.0/24 dev leno-n proto 108
			ip route add fd00:5:0:3::/64 dev leno-n proto 108`,
			datapath.KernelState{Routes: 2, Refuses: true, Device: true, Addrs: addrs, Up: true}},
		{"its device is down", "ip link set leno-n down", datapath.KernelState{Refuses: true, Device: true, Addrs: addrs[:1]}},
		{"its device is gone", "ip link del leno-n", datapath.KernelState{Refuses: true}},
		{"routes alone", "ip route add 10.5.3.0/24 dev other proto 108", datapath.KernelState{Routes: 1, Refuses: true}},
	} {
		ns.Sh(tt.change)
		var got datapath.KernelState
		var err error
		ns.Do(func() { got, err = readKernelState(context.Background(), "leno-n", pools) })
		must(t, err)
		slices.SortFunc(got.Addrs, netip.Addr.Compare)
		if got.Routes != tt.want.Routes || got.Refuses != tt.want.Refuses || got.Device != tt.want.Device || got.Up != tt.want.Up ||
			got.Carrier != tt.want.Carrier || !slices.Equal(got.Addrs, tt.want.Addrs) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// TestEmptyTLSBlock checks that a store's client speaks TLS because of an empty tls block.
func TestEmptyTLSBlock(t *testing.T) {
	t.Setenv("CONSUL_HTTP_SSL", "")
	for store, block := range map[string]string{
		"consul": `consul {
			address = %q
			tls {}
		}`,
		"etcd": `etcd {
			endpoints = [%q]
			tls {}
		}`,
	} {
		t.Run(store, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			defer listener.Close()
			c, err := config.Parse(fmt.Appendf(nil, block, listener.Addr()), "leno.hcl", config.Options{})
			must(t, err)
			store, _, err := OpenRegistry(c, hclog.NewNullLogger(), nil)
			must(t, err)
			if end := store.Abilities().Close; end != nil {
				defer end()
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go store.Network(ctx, "default")
			conn, err := listener.Accept()
			must(t, err)
			defer conn.Close()
			const handshake = 22 // the type of the first record of TLS
			first := make([]byte, 1)
			if _, err := conn.Read(first); err != nil || first[0] != handshake {
				t.Errorf("the first byte is %q, %v, want one of TLS", first, err)
			}
		})
	}
}
