package firewall

import (
	"fmt"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// BenchmarkNFT measures an Apply that finds everything in order, and one that replaces rules.
func BenchmarkNFT(b *testing.B) {
	for _, networks := range []int{1, 20} {
		var all []Network
		for i := range networks {
			n := two()[0]
			n.Name = fmt.Sprintf("n%d", i)
			all = append(all, n)
		}
		for _, changes := range []bool{false, true} {
			name := map[bool]string{false: "nothing to do", true: "replace"}[changes]
			b.Run(fmt.Sprintf("%d networks/%s", networks, name), func(b *testing.B) {
				ns, fw := nstest.New(b), newNFTables(hclog.NewNullLogger())
				ns.Do(func() {
					for i := 0; b.Loop(); i++ {
						if changes {
							all[0].Name = fmt.Sprintf("changed %d", i)
						}
						if _, err := fw.apply(b.Context(), random(all)); err != nil {
							b.Fatal(err)
						}
					}
				})
			})
		}
	}
}
