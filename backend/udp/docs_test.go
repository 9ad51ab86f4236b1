package udp

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestReasonsAreDocumented checks that the documentation lists every reason for which a packet may
// be dropped, and no other.
func TestReasonsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../website/content/docs/backends.mdx")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile("`([rt]x_\\w+)`").FindAllSubmatch(page, -1) {
		documented = append(documented, string(m[1]))
	}
	var counted []string
	for r := range reasons {
		if r == passed {
			continue
		}
		var c counters
		c.rx.drop(r, 1)
		c.tx.drop(r, 1)
		drops := c.snapshot().Drops
		if oneWay := map[reason]string{
			unknownPeer: "rx_", foreignDestination: "rx_", noPeer: "tx_", multicast: "tx_", tooBig: "tx_", badOffload: "tx_",
			congested: "tx_", overflow: "rx_",
		}[r]; oneWay != "" {
			drops = map[string]uint64{oneWay + r.String(): 1}
		}
		for name := range drops {
			counted = append(counted, name)
		}
	}
	slices.Sort(documented)
	slices.Sort(counted)
	if !slices.Equal(documented, counted) {
		t.Errorf("documented are\n%q, counted are\n%q", documented, counted)
	}
}
