package catalog

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

func TestMembersOf(t *testing.T) {
	t.Parallel()
	found := []*api.AgentMember{
		{Name: "host-a", Addr: "192.0.2.1", Status: 1},
		{Name: "host-b", Addr: "::ffff:192.0.2.2", Status: 2},
		{Name: "host-c", Addr: "2001:db8::3", Status: 3},
		{Name: "host-d", Addr: "192.0.2.4", Status: 4},
		{Name: "unknown status", Addr: "192.0.2.5", Status: 9},
		{Name: "no status", Addr: "192.0.2.6"},
		{Name: "no address", Status: 1},
		{Addr: "192.0.2.7", Status: 1},
	}
	want := []registry.Member{
		{Node: "host-a", Addr: netip.MustParseAddr("192.0.2.1"), Status: registry.MemberAlive},
		{Node: "host-b", Addr: netip.MustParseAddr("192.0.2.2"), Status: registry.MemberLeft},
		{Node: "host-c", Addr: netip.MustParseAddr("2001:db8::3"), Status: registry.MemberLeft},
		{Node: "host-d", Addr: netip.MustParseAddr("192.0.2.4"), Status: registry.MemberFailed},
	}
	if diff := cmp.Diff(want, membersOf(found), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	if got := membersOf(make([]*api.AgentMember, 0)); got != nil {
		t.Errorf("members of none: %v", got)
	}
}
