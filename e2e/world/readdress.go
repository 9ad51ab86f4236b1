package world

import (
	"fmt"
	"net/http"
	"net/netip"

	"github.com/lenonet/leno/e2e/lab"
)

// MoveAddress replaces an address of a host's first interface by another one of the same network.
func (w *World) MoveAddress(h *lab.Host, from, to netip.Addr) {
	w.T.Helper()
	for _, line := range []string{
		// Without this, the kernel would remove the new address with the old one.
		"echo 1 > /proc/sys/net/ipv4/conf/eth0/promote_secondaries",
		fmt.Sprintf("ip addr add %s/24 dev eth0", to),
		fmt.Sprintf("ip addr del %s/24 dev eth0", from),
	} {
		_, err := h.Exec(w.Ctx, "sh", "-c", line)
		w.Must(err)
	}
}

// FollowsAddress changes a host's only underlay address several times. Each time, packets between its containers and
// those of other hosts flow again, and the host can still use the store.
func (w *World) FollowsAddress(h *lab.Host, containers []*lab.Container) {
	w.T.Helper()
	first := h.Addrs[0]
	from := first
	for _, last := range []byte{211, 212, first.As4()[3]} {
		bytes := first.As4()
		bytes[3] = last
		to := netip.AddrFrom4(bytes)
		w.MoveAddress(h, from, to)
		from = to
		for _, c := range containers {
			for _, other := range containers {
				if (c.Host == h) != (other.Host == h) {
					w.Must(c.Reach(w.Ctx, other.Addrs[0]))
				}
			}
		}
		w.WaitHealth(h, http.StatusOK)
	}
}
