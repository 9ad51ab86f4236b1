package underlay

import (
	"fmt"
	"testing"
)

func TestDefaultRoutes(t *testing.T) {
	t.Parallel()
	ns := plainHost(t)
	ns.Sh(`ip route add default via 10.1.0.1 metric 50 mtu 1300
		ip route add default table 70000 nexthop via 192.0.2.1 nexthop via 10.1.0.1
		ip route add unreachable default metric 900
		ip -6 route add default via 2001:db8::1 metric 9 mtu 1280 src 2001:db8::34
		ip -6 route add default metric 77 nexthop via 2001:db8::1 nexthop via 2001:db8::2
		ip route add 0.0.0.0/1 via 192.0.2.1; ip route add 198.51.100.0/24 via 192.0.2.1`)
	eth0, eth1 := ns.Index("eth0"), ns.Index("eth1")
	ns.Do(func() {
		found, err := defaultRoutes()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for _, r := range found {
			got[fmt.Sprintf("%s metric %d by %v src %v mtu %d", r, r.Metric, r.Hops, r.Source, r.MTU)] = true
		}
		for _, want := range []string{
			fmt.Sprintf("IPv4 default route metric 0 by [%d] src invalid IP mtu 0", eth0),
			fmt.Sprintf("IPv4 default route metric 50 by [%d] src invalid IP mtu 1300", eth1),
			fmt.Sprintf("IPv4 default route of table 70000 metric 0 by [%d %d] src invalid IP mtu 0", eth0, eth1),
			fmt.Sprintf("IPv6 default route metric 1024 by [%d] src invalid IP mtu 0", eth0),
			fmt.Sprintf("IPv6 default route metric 9 by [%d] src 2001:db8::34 mtu 1280", eth0),
			fmt.Sprintf("IPv6 default route metric 77 by [%d %d] src invalid IP mtu 0", eth0, eth0),
		} {
			if !got[want] {
				t.Errorf("no %s in %v", want, found)
			}
			delete(got, want)
		}
		if len(got) > 0 {
			t.Errorf("also %v", got)
		}
	})
}
