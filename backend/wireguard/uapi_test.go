package wireguard

import (
	"fmt"
	"maps"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

func TestEncodeConfig(t *testing.T) {
	key, psk, port, pause := testKey(1), testKey(2), 7, 25*time.Second
	got := encodeConfig(wgtypes.Config{PrivateKey: &key, ListenPort: &port, Peers: []wgtypes.PeerConfig{
		{PublicKey: key, UpdateOnly: true, PresharedKey: &psk, Endpoint: &net.UDPAddr{IP: net.ParseIP("2001:db8::1"), Port: 9},
			PersistentKeepaliveInterval: &pause, ReplaceAllowedIPs: true, AllowedIPs: allowedNets("10.5.2.0/24,fd00::/64")},
		{PublicKey: psk, Remove: true},
	}})
	first, second := hexKey(key), hexKey(psk)
	want := "private_key=" + first + "\nlisten_port=7\n" +
		"public_key=" + first + "\nupdate_only=true\npreshared_key=" + second + "\nendpoint=[2001:db8::1]:9\n" +
		"persistent_keepalive_interval=25\nreplace_allowed_ips=true\nallowed_ip=10.5.2.0/24\nallowed_ip=fd00::/64\n" +
		"public_key=" + second + "\nremove=true\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestDecodeState(t *testing.T) {
	key := testKey(1)
	text := "private_key=" + hexKey(key) + "\nlisten_port=7\nfwmark=3\npublic_key=" + hexKey(testKey(2)) + "\npreshared_key=" + hexKey(testKey(3)) +
		"\nprotocol_version=1\nendpoint=192.0.2.2:9\nlast_handshake_time_sec=5\nlast_handshake_time_nsec=6\ntx_bytes=1\nrx_bytes=2\n" +
		"persistent_keepalive_interval=25\nallowed_ip=10.5.2.0/24\nallowed_ip=fd00::/64\npublic_key=" + hexKey(testKey(4)) + "\n"
	got, err := decodeState(text)
	if err != nil {
		t.Fatal(err)
	}
	want := &wgtypes.Device{Type: wgtypes.Userspace, PrivateKey: key, PublicKey: key.PublicKey(), ListenPort: 7, Peers: []wgtypes.Peer{
		{PublicKey: testKey(2), PresharedKey: testKey(3), Endpoint: got.Peers[0].Endpoint, PersistentKeepaliveInterval: 25 * time.Second,
			LastHandshakeTime: time.Unix(5, 0), ReceiveBytes: 2, TransmitBytes: 1, AllowedIPs: got.Peers[0].AllowedIPs},
		{PublicKey: testKey(4)},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if _, p := fromDevice(&got.Peers[0]); p.String() != "endpoint 192.0.2.2:9 allowed ips 10.5.2.0/24,fd00::/64 keepalive 25s" || p.psk != testKey(3) {
		t.Errorf("peer %s", p)
	}
	for _, bad := range []string{"private_key=00\n", "listen_port=x\n", "public_key=zz\n", "public_key=" + hexKey(key) + "\nendpoint=x\n",
		"public_key=" + hexKey(key) + "\nallowed_ip=x\n"} {
		if _, err := decodeState(bad); err == nil || !strings.HasPrefix(err.Error(), "state of the device: ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestSilent(t *testing.T) {
	for n, want := range []string{
		"",
		"no handshake so far with node-0",
		"no handshake so far with node-0, node-1",
		"no handshake so far with node-0, node-1, node-2",
		"no handshake so far with node-0, node-1, node-2 and 1 more",
	} {
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprint("node-", i)
		}
		if got := silent(names); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestUnproven(t *testing.T) {
	peers := map[wgtypes.Key]peer{testKey(1): {}, testKey(2): {}, testKey(3): {}}
	table := &peerTable{}
	if got := table.unproven(peers); len(got) != 3 {
		t.Errorf("of an unknown device: %v", got)
	}
	table.state = &wgtypes.Device{Peers: []wgtypes.Peer{
		{PublicKey: testKey(1), LastHandshakeTime: time.Unix(1, 0)},
		{PublicKey: testKey(2)},
		{PublicKey: testKey(4)},
	}}
	if got, want := table.unproven(peers), (map[wgtypes.Key]peer{testKey(2): {}, testKey(3): {}}); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
