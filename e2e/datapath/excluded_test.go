package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// TestExcludedSubnet changes a network so that it has no subnet for a host. While the host's subnet is in the pools, the
// host follows its peers and repairs its datapath. When it is not, the kernel refuses packets of its containers, and none
// leaves outside the tunnel. The host recovers by itself when the subnet is in the pools again.
func TestExcludedSubnet(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	a, b := w.Hosts[0], w.Hosts[1]
	plan := func(prefix, last string) string {
		return fmt.Sprintf("ipv4 {\n prefix = %q\n subnet_len = 26\n min = \"10.5.0.64\"\n max = %q\n}\nbackend \"vxlan\" {}\n", prefix, last)
	}
	for h, subnet := range map[*lab.Host]string{a: "10.5.0.64/26", b: "10.5.1.0/26"} {
		// A host first asks for the subnet it had before.
		w.Must(os.WriteFile(h.SubnetFile("default"), []byte("LENO_SUBNET="+subnet+"\n"), 0o644))
		w.Must(h.StartAgent(h.Config(world.ShortLease, h.Network("default", plan("10.5.0.0/23", "10.5.1.0")))))
		w.Must(h.WaitReady(w.Ctx))
		if got := w.Subnet(h, "default").String(); got != subnet {
			t.Fatalf("%s has %s, want %s", h.Name, got, subnet)
		}
		w.Container(h, "default")
	}
	w.Settle("default")
	peer, former := w.Containers[0], w.Containers[1]
	if peer.Host != a {
		peer, former = former, peer
	}
	// Only what this host sends counts: whether the peer still answers, or already, depends on which of the two learns first
	// of a change.
	subnet := netip.MustParsePrefix("10.5.1.0/26")
	stop := w.capture(func(addrs []netip.Addr) bool { return subnet.Contains(addrs[0]) })
	pings, err := former.StartPing(peer.Addrs[0], lab.PingOptions{Interval: 20 * time.Millisecond})
	w.Must(err)
	w.Must(pings.WaitAnswers(w.Ctx, 10))

	w.Apply("default", plan("10.5.0.0/23", "10.5.0.64"), "-force")
	w.WaitHealth(b, http.StatusTooManyRequests, "10.5.1.0/26: waiting for a lease", "network is full")
	from := a.Addrs[0]
	bytes := from.As4()
	bytes[3] = 211
	w.MoveAddress(a, from, netip.AddrFrom4(bytes))
	w.Eventually("packets to the peer's new address", func(ctx context.Context) error { return former.Reach(ctx, peer.Addrs[0]) })
	_, err = b.Exec(w.Ctx, "ip", "link", "del", "leno-default")
	w.Must(err)
	w.Must(os.Remove(b.SubnetFile("default")))
	w.Eventually("the device and the subnet file to be there again", func(ctx context.Context) error {
		_, err := os.Stat(b.SubnetFile("default"))
		return errors.Join(err, former.Reach(ctx, peer.Addrs[0]))
	})

	w.Apply("default", plan("10.5.0.0/24", "10.5.0.64"), "-force")
	w.WaitHealth(b, http.StatusServiceUnavailable, "10.5.1.0/26 is no subnet of the network any more", "network is full")
	_, err = pings.Stop(w.Ctx) // the kernel limits the rate of its answers
	w.Must(err)
	w.Eventually("packets of its containers to be refused", func(ctx context.Context) error {
		out, err := former.Exec(ctx, "ping", "-c", "1", "-W", "2", peer.Addrs[0].String())
		if err == nil || !strings.Contains(out+err.Error(), "Destination Host Unreachable") {
			return fmt.Errorf("%s %v", out, err)
		}
		return nil
	})
	if status, body, err := b.Get(w.Ctx, "/readyz"); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("%d %s, %v", status, body, err)
	}
	if _, err := os.Stat(b.SubnetFile("default")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the subnet file: %v", err)
	}

	w.Apply("default", plan("10.5.0.0/23", "10.5.1.0"))
	w.Must(b.WaitReady(w.Ctx))
	if got := w.Subnet(b, "default").String(); got != "10.5.1.0/26" {
		t.Errorf("%s has %s", b.Name, got)
	}
	w.Eventually("packets to flow again", func(ctx context.Context) error { return former.Reach(ctx, peer.Addrs[0]) })
	w.WaitHealth(b, http.StatusOK)
	if plain := stop(); len(plain) > 0 {
		t.Errorf("%d packets of its containers left outside the tunnel, from %s on", len(plain), plain[0])
	}
}
