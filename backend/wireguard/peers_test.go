package wireguard

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/lenonet/leno/backend/reconcile"
)

// tableDevice is a device with these peers that records how they are configured.
type tableDevice struct {
	peers   []wgtypes.Peer
	configs []wgtypes.PeerConfig
}

func (d *tableDevice) State() (*wgtypes.Device, error) { return &wgtypes.Device{Peers: d.peers}, nil }

func (d *tableDevice) Configure(c wgtypes.Config) error {
	d.configs = append(d.configs, c.Peers...)
	return nil
}

// TestWriteEndpoint checks when a change of a peer sets its endpoint: not if the device sends to one of the endpoints
// from which the peer's packets may come, because that is where the peer can be reached.
func TestWriteEndpoint(t *testing.T) {
	const wanted, roamed, other = "203.0.113.1:51820", "203.0.113.1:40000", "198.51.100.7:9"
	want := peer{endpoint: netip.MustParseAddrPort(wanted), allowed: "10.5.2.0/24"}
	keepalive, psk, allowed := want, want, want
	keepalive.keepalive, psk.psk, allowed.allowed = 25*time.Second, testKey(9), "10.5.2.0/24,fd00:5:0:2::/64"
	for _, tt := range []struct {
		name string
		at   string // the device's endpoint of the peer, "" if it does not have the peer
		want peer
		sets string // "" for no write, and else the endpoint that it sets or "none"
	}{
		{"roamed", roamed, want, ""},
		{"roamed, another keepalive", roamed, keepalive, "none"},
		{"roamed, another preshared key", roamed, psk, "none"},
		{"roamed, other subnets", roamed, allowed, "none"},
		{"not roamed, another keepalive", wanted, keepalive, "none"},
		{"another endpoint", other, want, wanted},
		{"another endpoint and keepalive", other, keepalive, wanted},
		{"a new peer", "", want, wanted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &tableDevice{}
			if tt.at != "" {
				d.peers = []wgtypes.Peer{{
					PublicKey:  testKey(2),
					Endpoint:   net.UDPAddrFromAddrPort(netip.MustParseAddrPort(tt.at)),
					AllowedIPs: allowedNets(want.allowed),
				}}
			}
			peers := map[wgtypes.Key]peer{testKey(2): tt.want}
			table := &peerTable{device: d, want: peers, sources: map[wgtypes.Key]sources{
				testKey(2): {endpoints: []netip.AddrPort{want.endpoint}, anyPort: true, ipv4: true},
			}}
			if _, err := reconcile.Apply(t.Context(), reconcile.Want("peer", table, compareKeys, peers, nil)); err != nil {
				t.Fatal(err)
			}
			var sets []string
			for _, c := range d.configs {
				switch {
				case c.Endpoint == nil:
					sets = append(sets, "none")
				default:
					sets = append(sets, c.Endpoint.String())
				}
				if *c.PersistentKeepaliveInterval != tt.want.keepalive || *c.PresharedKey != tt.want.psk ||
					fmt.Sprint(c.AllowedIPs) != fmt.Sprint(allowedNets(tt.want.allowed)) {
					t.Errorf("the rest of the peer is %+v", c)
				}
			}
			if want := slices.DeleteFunc([]string{tt.sets}, func(s string) bool { return s == "" }); !slices.Equal(sets, want) {
				t.Errorf("sets the endpoints %q, want %q", sets, want)
			}
		})
	}
}
