package wireguard

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/internal/testkit/waiting"
)

// TestDrift checks that what another program changes on the device with wg(8) is undone, and that packets flow again.
func TestDrift(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind, "")
			a.ping(b)
			ours, theirs := a.backend.keys.private.PublicKey().String(), b.backend.keys.private.PublicKey().String()
			shown := a.ns.Sh("wg show " + a.link())
			mustContain(t, shown, "public key: "+ours, "listening port: 51820", "peer: "+theirs, "endpoint: 192.0.2.2:51820",
				"10.5.2.0/24", "fd00:5:0:2::/64", "latest handshake: ")
			want := dumpPeers(a.backend)
			link, stranger := a.link(), testKey(77).String()
			// Packets of the peer would prove an endpoint.
			b.ns.Sh("nft add table inet silent; nft add chain inet silent out '{ type filter hook output priority 0; policy drop; }'")
			received := func() string { return a.ns.Sh("wg show " + link + " transfer | cut -f 2") }
			last, same := "", 0
			waiting.Until(t, "the last packets of the peer", func() bool {
				now := received()
				if same++; now != last {
					last, same = now, 0
				}
				return same == 10
			})
			a.apply()
			for _, tt := range []struct{ script, fault string }{
				{"wg set " + link + " peer " + theirs + " endpoint 192.0.2.2:4444", "[peers were changed: " + theirs + " endpoint 192.0.2.2:4444 allowed ips 10.5.2.0/24,fd00:5:0:2::/64]"},
				{"wg set " + link + " peer " + stranger + " allowed-ips 10.5.9.0/24", "[foreign peers were there: " + stranger + " no endpoint allowed ips 10.5.9.0/24]"},
				{"wg set " + link + " peer " + stranger + " allowed-ips 10.5.2.0/24", "[peers were changed: " + theirs +
					" endpoint 192.0.2.2:51820 allowed ips fd00:5:0:2::/64 foreign peers were there: " + stranger + " no endpoint allowed ips 10.5.2.0/24]"},
				{"wg set " + link + " peer " + theirs + " remove", "[peers were missing: " + theirs + "]"},
				{"wg set " + link + " peer " + theirs + " allowed-ips 0.0.0.0/0", "[peers were changed: " + theirs + " endpoint 192.0.2.2:51820 allowed ips 0.0.0.0/0]"},
				{"wg set " + link + " peer " + theirs + " persistent-keepalive 9", "[peers were changed: " + theirs +
					" endpoint 192.0.2.2:51820 allowed ips 10.5.2.0/24,fd00:5:0:2::/64 keepalive 9s]"},
				{"wg set " + link + " listen-port 4444", "[device had another listen port: 4444 instead of 51820]"},
				{"wg genkey >/dev/null; echo " + testPrivate + " | wg set " + link + " private-key /dev/stdin", "[device had another private key: that of public key " +
					mustKey(t, testPrivate).PublicKey().String() + "]"},
			} {
				a.ns.Sh(tt.script)
				nstest.AwaitForks() // a program that starts has the old port until it runs
				if r := a.apply(); fmt.Sprint(r.Repaired) != tt.fault || r.Writes == 0 || r.Peers != 1 {
					t.Errorf("%s: %q, want %q", tt.script, r.Repaired, tt.fault)
				}
				if got := dumpPeers(a.backend); got != want {
					t.Errorf("%s: left\n%swant\n%s", tt.script, got, want)
				}
			}
			b.ns.Sh("nft delete table inet silent")
			b.renew()
			b.apply()
			a.ping(b)
			b.ping(a)
		})
	}
}

const testPrivate = "wGkOgRyUFjTCSiRwM6CkRtEuMkYB+4Xk3kWZJFqcY0c="

func mustKey(t *testing.T, text string) wgtypes.Key {
	t.Helper()
	key, err := parseKey(text)
	if err != nil {
		t.Fatal(err)
	}
	return clamped(key)
}

// TestEndpointOfAnyPublicAddress checks that a peer that answers from its other public address is left alone.
func TestEndpointOfAnyPublicAddress(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind, "")
			a.ns.Sh(fmt.Sprintf("wg set %s peer %s endpoint [2001:db8::2]:51820", a.link(), b.backend.keys.private.PublicKey()))
			if r := a.apply(); len(r.Repaired) != 0 || r.Writes != 0 {
				t.Errorf("report %+v", r)
			}
			a.ping(b)
		})
	}
}

// TestSecondCard checks hosts whose packets come from an address that they have not published, as with two cards in one
// LAN: nothing is set back, and no repair is reported.
func TestSecondCard(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind, "")
			a.ping(b)
			for _, h := range []*host{a, b} {
				h.apply()
				h.ns.Sh(fmt.Sprintf("ip addr add 192.0.2.1%[1]d/24 dev eth0; ip route replace 192.0.2.0/24 dev eth0 proto kernel src 192.0.2.1%[1]d", h.n))
			}
			// A device keeps its source address until an endpoint is set.
			b.ns.Sh(fmt.Sprintf("wg set %s peer %s endpoint 192.0.2.1:51820", b.link(), a.backend.keys.private.PublicKey()))
			b.ping(a)
			for range 3 {
				for _, h := range []*host{a, b} {
					if r := h.apply(); r.Writes != 0 || len(r.Repaired) != 0 {
						t.Errorf("host %d: report %+v", h.n, r)
					}
				}
				a.ping(b)
				b.ping(a)
			}
			if got := a.endpoint(b).String(); got != "192.0.2.12:51820" {
				t.Errorf("endpoint %s", got)
			}
		})
	}
}

// TestLostFamily checks that a host that has lost its IPv6 address sends to its peers over IPv4 at once: whether it
// preferred IPv6, or replied to packets of a peer that does. That is no repair: no other program has changed the
// endpoint. A backend that starts after the loss finds the endpoint on a device of the kernel.
func TestLostFamily(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		for _, tt := range []struct {
			name     string
			addrs    []netip.Addr // of host 1, the preferred one first
			restarts bool
		}{
			{"IPv6 preferred", addrs("2001:db8::1", "192.0.2.1"), false},
			{"IPv4 preferred", addrs("192.0.2.1", "2001:db8::1"), false},
			{"IPv6 preferred, restart", addrs("2001:db8::1", "192.0.2.1"), true},
		} {
			t.Run(name+", "+tt.name, func(t *testing.T) {
				t.Parallel()
				a, b := newHosts(t, kind, "")
				a.at = &backend.Underlay{Interface: "eth0", MTU: 1500, Addrs: tt.addrs}
				b.at = &backend.Underlay{Interface: "eth0", MTU: 1500, Addrs: addrs("2001:db8::2", "192.0.2.2")}
				exchange(a, b)
				a.ping(b)
				b.ping(a)
				const set = "wg set %s peer %s endpoint %s"
				// A packet that was on its way over IPv4 changes the endpoints back.
				waiting.Eventually(t, func() error {
					a.ns.Sh(fmt.Sprintf(set, a.link(), b.backend.keys.private.PublicKey(), "[2001:db8::2]:51820"))
					b.ns.Sh(fmt.Sprintf(set, b.link(), a.backend.keys.private.PublicKey(), "[2001:db8::1]:51820"))
					b.ping(a)
					if r := a.apply(); r.Writes != 0 || len(r.Repaired) != 0 {
						t.Errorf("with both families: %+v", r)
					}
					if got := a.endpoint(b).String(); got != "[2001:db8::2]:51820" {
						return fmt.Errorf("with both families, endpoint %s", got)
					}
					return nil
				})
				a.ns.Sh("ip addr del 2001:db8::1/64 dev eth0")
				a.at = &backend.Underlay{Interface: "eth0", MTU: 1500, Addrs: addrs("192.0.2.1")}
				a.state = a.newState(b.asPeer())
				if tt.restarts {
					a.renew()
				}
				if r := a.apply(); r.Writes == 0 || len(r.Repaired) != 0 {
					t.Errorf("report %+v", r)
				}
				if got := a.endpoint(b).String(); got != "192.0.2.2:51820" {
					t.Errorf("without IPv6, endpoint %s", got)
				}
				// Host 2 does not know of the loss yet, and replies to where the packets come from.
				if tt.restarts { // a handshake that follows the last one too closely is not answered
					a.ping4(b)
				} else {
					a.pingFirst(b)
				}
				exchange(a, b)
				if got := b.endpoint(a).String(); got != "192.0.2.1:51820" {
					t.Errorf("to the host without IPv6: endpoint %s", got)
				}
				b.ping(a)
			})
		}
	}
}

// TestSourceAfterChangeOfUnderlay checks that a host whose address changes sends from the new one at once, also to a peer
// that it answered from the old one.
func TestSourceAfterChangeOfUnderlay(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newStrangers(t, kind, "")
			// Host 1 has sent nothing from another address, which would move host 2's endpoint.
			a.ns.Sh(`sysctl -q -w net.ipv4.conf.eth0.promote_secondaries=1
ip addr del 192.0.2.1/24 dev eth0; ip addr add 192.0.2.11/24 dev eth0`)
			a.at = &backend.Underlay{Interface: "eth0", MTU: 1500, Addrs: addrs("192.0.2.11")}
			exchange(a, b)
			b.ping(a)
			a.ns.Sh("ip addr add 192.0.2.1/24 dev eth0; ip addr del 192.0.2.11/24 dev eth0")
			a.at = nil
			a.state.Underlay = a.underlay()
			a.apply()
			// Without a choice of another source, all packets of 15 seconds are lost.
			a.pingFirst(b)
		})
	}
}

// TestManyRestartsOfAPeer checks that a peer that comes back with another key each time leaves nothing behind.
func TestManyRestartsOfAPeer(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind, "")
			for range 100 {
				key, err := wgtypes.GeneratePrivateKey()
				if err != nil {
					t.Fatal(err)
				}
				a.state.Peers[0].Attributes = fmt.Appendf(nil, `{"public_key":%q,"listen_port":51820}`, key.PublicKey())
				if r, err := a.tryApply(); err != nil || r.Peers != 1 || len(r.Repaired) != 0 {
					t.Fatalf("%+v, %v", r, err)
				}
			}
			if got := strings.Count(dumpPeers(a.backend), "\n"); got != 1 {
				t.Errorf("%d peers", got)
			}
			exchange(a, b)
			a.ping(b)
		})
	}
}

// TestForgedSource checks that a packet is dropped whose inner source is in the subnet of another host than the one that
// sent it.
func TestForgedSource(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind, "")
			b.ping(a)
			third := backend.Peer{Node: "node-3", Subnets: subnets(3), PublicIPs: addrs("192.0.2.3"), Backend: Name,
				Attributes: fmt.Appendf(nil, `{"public_key":%q,"listen_port":51820}`, testKey(3))}
			a.state.Peers = append(a.state.Peers, third)
			a.apply()
			a.ns.Sh("nft 'add table ip t; add chain ip t c { type filter hook prerouting priority raw; }; add rule ip t c ip saddr 10.5.3.1 counter'")
			b.ns.Sh("ip addr add 10.5.3.1/32 dev br0")
			if out, err := b.ns.Try("ping -n -c 3 -i 0.1 -W 0.5 -I 10.5.3.1 10.5.1.1"); err == nil {
				t.Errorf("answered\n%s", out)
			}
			mustContain(t, a.ns.Sh("nft list chain ip t c"), "ip saddr 10.5.3.1 counter packets 0 ")
			b.ping(a) // so the path was open
		})
	}
}

// TestRemovedPeer checks that a host that is no longer a peer can neither send nor receive, even in the session that it
// has, and gets no new one.
func TestRemovedPeer(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind, "")
			a.ping(b)
			b.ping(a)
			a.state.Peers = nil
			a.apply()
			a.silent(b)
			b.silent(a)
			if out := dumpPeers(a.backend); out != "" {
				t.Errorf("peers of the host:\n%s", out)
			}
			b.renew() // which starts a handshake
			b.apply()
			b.silent(a)
			exchange(a, b)
			b.ping(a) // so the path was open
		})
	}
}

// TestBadKeys checks that errors name keys that cannot be used, and that the running device keeps working.
func TestBadKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	psk := filepath.Join(dir, "psk")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(psk, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(psk, mode); err != nil {
			t.Fatal(err)
		}
	}
	write(testKey(8).String(), 0o600)
	a, b := newHosts(t, newType(true), fmt.Sprintf(`{"psk_file":%q}`, psk))
	a.ping(b)
	mustContain(t, a.ns.Sh("wg show "+a.link()), "preshared key: (hidden)")
	private := filepath.Join(a.dir, "wireguard.key")
	tests := map[string]struct {
		spoil func()
		want  string
	}{
		"key for others":  {func() { mustNil(t, os.Chmod(private, 0o644)) }, "key_file: " + private + " can be read or written by others (mode 0644)"},
		"psk for others":  {func() { write(testKey(8).String(), 0o640) }, "psk_file: " + psk + " can be read or written by others (mode 0640)"},
		"malformed psk":   {func() { write("secret", 0o600) }, "psk_file: the key in " + psk + " is not 32 bytes in base64"},
		"zero psk":        {func() { write(wgtypes.Key{}.String(), 0o600) }, "psk_file: the key in " + psk + " is all zeros"},
		"missing psk":     {func() { mustNil(t, os.Remove(psk)) }, "psk_file: open " + psk + ": no such file or directory"},
		"malformed key":   {func() { mustNil(t, os.WriteFile(private, []byte("x"), 0o600)) }, "key_file: the key in " + private + " is not 32 bytes in base64"},
		"directory there": {func() { mustNil(t, os.Remove(private)); mustNil(t, os.Mkdir(private, 0o700)) }, "key_file: " + private + " is not a regular file"},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		tt := tests[name]
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(private)
			if err != nil {
				t.Fatal(err)
			}
			tt.spoil()
			if _, err := a.advertise(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("advertise: %v", err)
			}
			a.apply()
			a.ping(b)
			fresh, err := a.kind.New(a.config())
			if err != nil {
				t.Fatal(err)
			}
			a.ns.Do(func() { _, err = fresh.Apply(t.Context(), a.state) })
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("apply of a new process: %v", err)
			}
			mustNil(t, fresh.Close())
			write(testKey(8).String(), 0o600)
			mustNil(t, os.RemoveAll(private))
			mustNil(t, os.WriteFile(private, text, 0o600))
		})
	}
	t.Run("absolute key file", func(t *testing.T) {
		path := filepath.Join(dir, "elsewhere", "key")
		config := a.config()
		config.Options = []byte(fmt.Sprintf(`{"key_file":%q}`, path))
		other, err := a.kind.New(config)
		mustNil(t, err)
		if _, err := other.Advertise(a.state.Underlay); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "create it with `wg genkey`") {
			t.Errorf("advertise: %v", err)
		}
		if _, err := os.Stat(filepath.Dir(path)); err == nil {
			t.Error("a definition created a directory")
		}
	})
	// Hosts with different preshared keys do not hear each other.
	write(testKey(9).String(), 0o600)
	a.mustAdvertise()
	a.apply()
	a.renew()
	a.apply()
	a.silent(b)
}

func mustNil(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestLostKey checks that a running process writes its key again, and that a new process creates one, with which the
// host works again as soon as its peers know it.
func TestLostKey(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind, "")
			a.ping(b)
			private := filepath.Join(a.dir, "wireguard.key")
			before := a.mustAdvertise().Attributes
			mustNil(t, os.Remove(private))
			if got := a.mustAdvertise().Attributes; string(got) != string(before) {
				t.Errorf("another key: %s", got)
			}
			mustNil(t, os.Remove(private))
			mustNil(t, a.backend.Close())
			mustNil(t, os.RemoveAll(private))
			a.renew()
			if got := a.mustAdvertise().Attributes; string(got) == string(before) {
				t.Error("the key was not lost")
			}
			exchange(a, b)
			a.ping(b)
			b.ping(a)
		})
	}
}

// TestPortInUse checks that the error names a port that another program uses, that packets to the network are refused
// rather than sent unencrypted, and that a device that already listens keeps its port.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind, "")
			a.ping(b)
			var taken int
			a.ns.Do(func() {
				var err error
				if taken, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
					err = unix.Bind(taken, &unix.SockaddrInet4{Port: 4444})
				}
				mustNil(t, err)
			})
			release := sync.OnceValue(func() error { return unix.Close(taken) })
			defer release()
			wantBusy := func() {
				t.Helper()
				_, err := a.tryApply()
				if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "udp port 4444 is used by another program") {
					t.Errorf("apply: %v", err)
				}
				if parts := backend.ByPart(err); parts[backend.Device] == nil {
					t.Errorf("%v is not about the device", err)
				}
			}
			a.options = `{"listen_port":4444}`
			mustNil(t, a.backend.Change(a.config()))
			wantBusy()
			a.ping(b)
			b.ping(a)

			a.state, a.options = backend.State{}, `{"listen_port":4444}`
			a.apply()
			a.renew()
			a.state = a.newState(b.asPeer())
			wantBusy()
			mustContain(t, a.ns.Sh("ip route show proto 108; ip -6 route show proto 108"), "unreachable 10.5.0.0/16", "unreachable fd00:5::/48")
			mustNil(t, release())
			nstest.AwaitForks()
			exchange(a, b)
			a.ping(b)
			b.ping(a)
		})
	}
}

// TestChange checks that options that interrupt nothing lose no packet.
func TestChange(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind, "")
			a.ping(b)
			device := a.backend.tunnel.device
			for _, options := range []string{`{"persistent_keepalive":25}`, `{"mtu":1380}`, `{"persistent_keepalive":7,"mtu":1400}`} {
				a.options = options
				mustNil(t, a.backend.Change(a.config()))
				a.state = a.newState(b.asPeer())
				a.apply()
				if a.backend.tunnel.device != device {
					t.Fatal("the device was opened again")
				}
				// With a deadline, ping goes on until it has 10 answers.
				out, err := a.ns.Try("ping -n -c 10 -i 0.01 -w 60 -M do -s 1350 -I 10.5.1.1 10.5.2.1")
				for seq := range 10 {
					if !strings.Contains(out, fmt.Sprintf("icmp_seq=%d ", seq+1)) {
						t.Errorf("%s: %d is lost: %v\n%s", options, seq+1, err, out)
					}
				}
			}
			if got := dumpPeers(a.backend); !strings.Contains(got, "keepalive 7s") {
				t.Errorf("peers %s", got)
			}
			b.ping(a)
		})
	}
}

// TestDeviceOfAnotherBackend checks that a device that the udp backend left is replaced, and that one that another
// process has is not.
func TestDeviceOfAnotherBackend(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, newType(true), "")
	state := a.state
	a.state = backend.State{}
	a.apply()
	a.state = state
	a.ns.Sh("ip tuntap add " + a.link() + " mode tun multi_queue")
	a.apply()
	a.ping(b)

	other, err := a.kind.New(a.config())
	mustNil(t, err)
	a.ns.Do(func() { _, err = other.Apply(t.Context(), a.state) })
	if !errors.Is(err, kernel.ErrTUNBusy) {
		t.Errorf("another process: %v", err)
	}
	mustNil(t, other.Close())
	a.ping(b)
}

// TestControlSocket checks that the socket of an ended process is replaced, that a removed one comes back, and that the
// device works without one.
func TestControlSocket(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, newType(true), "")
	device := func() *processDevice { return a.backend.tunnel.device.(*processDevice) }
	path := device().socketPath
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	mustNil(t, os.Remove(path))
	a.apply()
	mustContain(t, a.ns.Sh("wg show "+a.link()+" peers"), b.backend.keys.private.PublicKey().String())

	device().control.listener.SetUnlinkOnClose(false)
	mustNil(t, device().control.listener.Close()) // as kill -9 leaves it
	device().control = nil
	a.renew()
	a.apply()
	mustContain(t, a.ns.Sh("wg show "+a.link()+" peers"), b.backend.keys.private.PublicKey().String())

	blocked := filepath.Join(t.TempDir(), "file")
	mustNil(t, os.WriteFile(blocked, nil, 0o600))
	a.renew()
	a.backend.tunnel.socketDir = blocked
	if r := a.apply(); len(r.Notes) != 2 || !strings.Contains(r.Notes[1], "wg(8) cannot show the device") {
		t.Errorf("notes %q", r.Notes)
	}
	a.ping(b)
	mustNil(t, a.backend.Close())
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestCounters(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind, "")
			if got := (&Backend{}).Counters(); len(got) != 0 {
				t.Errorf("without a device: %v", got)
			}
			totals := a.backend.Abilities().Totals
			if totals == nil {
				t.Fatal("there are no totals")
			}
			a.ping(b)
			var got map[string]backend.Counters
			a.ns.Do(func() { got = a.backend.Counters() })
			if c := got["node-2"]; c.RxBytes < 100 || c.TxBytes < 100 {
				t.Errorf("of the peer: %+v", c)
			}
			if c := got[""]; c.RxPackets == 0 || c.TxPackets == 0 || len(c.Drops) != len(a.kind.Drops) {
				t.Errorf("of the device: %+v", c)
			}
			a.ns.Do(func() {
				if c, err := totals(); err != nil || c.RxPackets == 0 || c.TxPackets == 0 || c.RxBytes == 0 || c.TxBytes == 0 {
					t.Errorf("in total: %+v, %v", c, err)
				}
			})
		})
	}
}

// TestRekey checks that a host publishes another key after Rekey.
func TestRekey(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind, "")
			a.ping(b)
			before := string(a.mustAdvertise().Attributes)
			mustNil(t, a.backend.keys.replace())
			if after := string(a.mustAdvertise().Attributes); after == before {
				t.Errorf("published %s before and after", after)
			}
			exchange(a, b)
			a.ping(b)
			b.ping(a)

			operators := filepath.Join(t.TempDir(), "key")
			key, err := wgtypes.GeneratePrivateKey()
			mustNil(t, err)
			mustNil(t, os.WriteFile(operators, []byte(key.String()), 0o600))
			a.options = fmt.Sprintf(`{"key_file":%q}`, operators)
			a.renew()
			mustNil(t, a.backend.keys.replace())
			if got := string(a.mustAdvertise().Attributes); !strings.Contains(got, key.PublicKey().String()) {
				t.Errorf("published %s, want %s", got, key.PublicKey())
			}
		})
	}
}

// TestCopiedKey checks that a host that starts with the key of another host takes another one, unless the file is the
// operator's, and that a host that had the key before goes on.
func TestCopiedKey(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind, "")
			a.ping(b)
			own, err := os.ReadFile(filepath.Join(a.dir, "wireguard.key"))
			mustNil(t, err)
			twin := b.asPeer()
			twin.Node, twin.Subnets, twin.PublicIPs, twin.Attributes = "node-3", subnets(3), addrs("192.0.2.3"), a.mustAdvertise().Attributes
			twin.Precedence = 1
			a.state.Peers = append(a.state.Peers, twin)
			if r := a.apply(); len(r.Skipped) != 1 || !strings.Contains(r.Skipped[0].Reason, "is that of this host too") {
				t.Errorf("skipped %v", r.Skipped)
			}
			a.ping(b)

			// Host 2 is now a copy of host 1.
			b.state = backend.State{}
			b.apply()
			mustNil(t, os.MkdirAll(b.dir, 0o700))
			operators := filepath.Join(t.TempDir(), "key")
			mustNil(t, os.WriteFile(operators, own, 0o600))
			for _, file := range []string{operators, filepath.Join(b.dir, "wireguard.key")} {
				mustNil(t, os.WriteFile(file, own, 0o600))
				b.options = ""
				if file == operators {
					b.options = fmt.Sprintf(`{"key_file":%q}`, operators)
				}
				b.renew()
				b.state = b.newState(a.asPeer())
				_, err := b.tryApply()
				if err == nil || !strings.Contains(err.Error(), "the key in "+file) || !strings.Contains(err.Error(), "that of node node-1 too") {
					t.Errorf("apply: %v", err)
				}
				mustContain(t, b.ns.Sh("ip route show proto 108"), "unreachable 10.5.0.0/16")
				if got, err := os.ReadFile(file); err != nil || (string(got) == string(own)) != (file == operators) {
					t.Errorf("%s: replaced: %t, %v", file, string(got) != string(own), err)
				}
			}
			exchange(a, b)
			a.ping(b)
			b.ping(a)

			// A process that starts beside a copy goes on with the key if this host had used it with the same lease.
			for _, lease := range []uint64{4, 6, 0} {
				a.state.Precedence = 4
				a.apply()
				twin.Attributes = a.mustAdvertise().Attributes
				mustNil(t, a.backend.Close())
				nstest.AwaitForks()
				a.ns.Sh("ip link del " + a.link())
				a.renew()
				a.state = a.newState(b.asPeer(), twin)
				a.state.Precedence = lease
				_, err := a.tryApply()
				if lease == 4 {
					mustNil(t, err)
				} else if err == nil || !strings.Contains(err.Error(), "was that of node node-3 too: it was replaced") {
					t.Errorf("lease %d: %v", lease, err)
				}
				exchange(a, b)
				a.ping(b)
			}
			b.ping(a)
		})
	}
}
