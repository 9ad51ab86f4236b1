package netfilter

import (
	"slices"
	"testing"
)

// TestParseCounted: the rules are those of ParseSave, and each has its counter.
func TestParseCounted(t *testing.T) {
	const rules = "-A FORWARD -s 10.5.1.2/32 -m comment --comment \"[1:2] -A x\" -j DROP"
	counted := "*filter\n:FORWARD DROP [12:840]\n:OWN - [0:0]\n[7:588] " + rules + "\n[3:252] -A OWN -j RETURN\nCOMMIT\n# Completed\n"
	got, err := parseCounted(counted)
	if err != nil {
		t.Fatal(err)
	}
	f := got["filter"]
	if len(f.Rules) != 2 || f.Rules[0].String() != rules || f.Policies["FORWARD"] != "DROP" {
		t.Errorf("%+v", f)
	}
	if !slices.Equal(f.Packets, []uint64{7, 3}) || f.PolicyPackets["FORWARD"] != 12 {
		t.Errorf("counters %v and %v", f.Packets, f.PolicyPackets)
	}
	// A listing without counters has none.
	if got, err = parseCounted("*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -j DROP\nCOMMIT\n"); err != nil || got["filter"].Packets != nil {
		t.Errorf("%+v, %v", got, err)
	}
}
