package wireguard

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestKilledProcess checks that after kill -9 everything in the kernel stays, and that the next process starts handshakes
// itself: its peers do not know that it has no sessions. If it waited for them, or for a packet to send, there would be no
// handshake, because no packets are sent.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, newType(true), "")
	a.ping(b)
	mustNil(t, a.backend.Close())
	kill := a.start()
	a.ping(b)
	shown := fmt.Sprintf(`ip -o addr show dev %[1]s scope global; ip route show proto 108; ip -6 route show proto 108
ip -o link show %[1]s | sed 's/ state .*//; s/<.*>//'`, a.link())
	dump := func() string { return strings.ReplaceAll(a.ns.Sh(shown), " linkdown", "") }
	before := dump()
	for range 3 {
		kill()
		if got := dump(); got != before {
			t.Fatalf("after kill -9\n%s\nbefore\n%s", got, before)
		}
		b.silent(a)
		kill = a.start()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			times := a.ns.Sh("wg show " + a.link() + " latest-handshakes") // the peer's key and the time, or 0
			if !strings.HasSuffix(strings.TrimSpace(times), "\t0") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("no handshake: %s", times)
			}
		}
		b.pingFirst(a)
		a.pingFirst(b)
		if got := dump(); got != before {
			t.Fatalf("after adoption\n%s\nbefore\n%s", got, before)
		}
	}
}
