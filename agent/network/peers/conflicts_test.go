package peers

import (
	"strings"
	"testing"

	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

func TestConflicts(t *testing.T) {
	own := agenttest.Lease("a", 1, "sa", 1)
	own.Backend.Object = []byte(`{"type":"alloc","listen_port":51820}`)
	sameName := agenttest.Lease("b", 2, "sb", 1)
	sameName.Node = "a"
	sameIP := agenttest.Lease("c", 3, "sc", 1)
	sameIP.PublicIPs = own.PublicIPs
	behind := sameIP
	behind.Backend = registry.Backend{Type: "alloc", Object: []byte(`{"type":"alloc","listen_port":51820,"public_port":51830}`)}
	gone := sameIP
	gone.Session = ""
	missing := sameIP
	missing.Missing = true
	copied := agenttest.Lease("d", 4, "sd", 2)
	copied.NodeID = own.NodeID
	before := copied // our own from before a restore, under our former name and address
	before.ModifyIndex = 0
	moved := own // our own, seen before the claim was answered
	moved.ModifyIndex, moved.Session, moved.PublicIPs = 2, registry.UnknownSession, sameName.PublicIPs
	forged := own // under another session, at our own address
	forged.Slot, forged.Subnets = 7, agenttest.Lease("a", 7, "", 0).Subnets
	forged.Session, forged.ModifyIndex = "sx", 9
	unverified, surplus, former := forged, forged, forged
	unverified.Session, surplus.Session, former.ModifyIndex = registry.UnknownSession, own.Session, 1
	tests := []struct {
		name  string
		lease registry.Lease
		want  []string // words of the text; none if there is no conflict
	}{
		{"names this host and is another's", forged, []string{"10.5.7.0/24", "(a,", "id-a", "leno lease revoke"}},
		{"names this host, by an unknown author", unverified, nil},
		{"this host's second record", surplus, nil},
		{"this host's record of before", former, nil},
		{"our own at another address", moved, nil},
		{"our own", own, nil},
		{"another host", agenttest.Lease("b", 2, "sb", 1), nil},
		{"same name", sameName, []string{`"a"`, "192.0.2.98", "192.0.2.97", "id-b"}},
		{"same address", sameIP, []string{`"c"`, `"a"`, "192.0.2.97"}},
		{"same address and another port", behind, nil},
		{"same address but lapsed", gone, nil},
		{"same address, and the store has lost its record", missing, nil},
		{"same node id", copied, []string{`"d"`, "192.0.2.100", `"a"`, "192.0.2.97", "copied"}},
		{"our own from before a restore", before, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := conflicts([]registry.Lease{tt.lease}, own).Reason
			if (got != "") != (tt.want != nil) {
				t.Fatalf("got %q", got)
			}
			for _, word := range tt.want {
				if !strings.Contains(got, word) {
					t.Errorf("%q does not name %s", got, word)
				}
			}
		})
	}
}

// TestManyConflicts: the text stays short, however many hosts are in conflict.
func TestManyConflicts(t *testing.T) {
	own := agenttest.Lease("a", 1, "sa", 1)
	var rivals []registry.Lease
	for slot := range uint64(10) {
		l := agenttest.Lease("b", slot+2, "sb", 1)
		l.PublicIPs = own.PublicIPs
		rivals = append(rivals, l)
	}
	got := conflicts(rivals, own).Reason
	if strings.Count(got, "; ") < 3 || !strings.HasSuffix(got, "; and 7 more") || strings.Contains(got, "10.5.5.0/24") {
		t.Errorf("got %q", got)
	}
}

// TestOlderInAConflict: a host that said first what another one says too is not the one that must go.
func TestOlderInAConflict(t *testing.T) {
	own := agenttest.Lease("a", 1, "sa", 10)
	own.CreateIndex = 10
	rival := func(created, modified uint64) registry.Lease {
		l := agenttest.Lease("b", 2, "sb", modified)
		l.Node, l.CreateIndex = own.Node, created
		return l
	}
	for _, tt := range []struct {
		name   string
		leases []registry.Lease
		want   bool
	}{
		{"no conflict", nil, false},
		{"with a newer record", []registry.Lease{rival(20, 20)}, true},
		{"with an older record that was changed later", []registry.Lease{rival(5, 20)}, true},
		{"with an older record", []registry.Lease{rival(5, 5)}, false},
		{"with both", []registry.Lease{rival(20, 20), rival(5, 5)}, false},
	} {
		if got := conflicts(tt.leases, own); got.Older != tt.want || (got.Reason == "") != (tt.leases == nil) {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}
