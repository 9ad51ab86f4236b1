package command

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
)

func TestDuplicatesAreNamed(t *testing.T) {
	lease := func(slot int, node, id string, held bool, addrs ...string) api.Lease {
		l := api.Lease{Subnet: netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", slot)), Node: node, NodeID: id, Held: held}
		for _, a := range addrs {
			l.PublicIPs = append(l.PublicIPs, netip.MustParseAddr(a))
		}
		return l
	}
	a := lease(1, "a", "1", true, "192.0.2.1", "2001:db8::1")
	for _, tt := range []struct {
		name  string
		other api.Lease
		want  string
	}{
		{"nothing in common", lease(2, "b", "2", true, "192.0.2.2"), ""},
		{"one address", lease(2, "b", "2", true, "192.0.2.2", "2001:db8::1"), "\na of 10.5.1.0/24 and b of 10.5.2.0/24 both have the address 2001:db8::1.\n"},
		{"one name", lease(2, "a", "2", true, "192.0.2.2"), "\na of 10.5.1.0/24 and a of 10.5.2.0/24 both have the name a.\n"},
		{"lapsed", lease(2, "a", "2", false, "192.0.2.1"), ""},
		{"the same host", lease(2, "a", "1", true, "192.0.2.1"), ""},
	} {
		var out strings.Builder
		writeDuplicates(&out, []api.Lease{a, tt.other})
		if out.String() != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, out.String(), tt.want)
		}
	}
	var many []api.Lease
	for i := range 200 {
		many = append(many, lease(i, "a", fmt.Sprint(i), true, "192.0.2.1"))
	}
	var out strings.Builder
	writeDuplicates(&out, many)
	if n := strings.Count(out.String(), "\n"); n != maxDuplicates+2 || !strings.HasSuffix(out.String(), "And 388 more.\n") {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
}
