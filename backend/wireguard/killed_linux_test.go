package wireguard

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/waiting"
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
		// The other side completes the handshake with a's first packet, and sends with the old keys until then.
		last := b.latestHandshake()
		waiting.Until(t, "the next second", func() bool { return time.Now().Unix() > last })
		kill = a.start()
		waiting.Until(t, "a handshake", func() bool { return a.latestHandshake() > 0 && b.latestHandshake() > last })
		b.pingFirst(a)
		a.pingFirst(b)
		if got := dump(); got != before {
			t.Fatalf("after adoption\n%s\nbefore\n%s", got, before)
		}
	}
}

// latestHandshake returns the time of the last handshake with the only peer, in seconds since 1970, or 0.
func (h *host) latestHandshake() int64 {
	h.t.Helper()
	_, text, _ := strings.Cut(h.ns.Sh("wg show "+h.link()+" latest-handshakes"), "\t")
	seconds, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		h.t.Fatal(err)
	}
	return seconds
}
