package describe

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
)

func TestSkippedIsBounded(t *testing.T) {
	var skipped []api.Skipped
	for i := range 10_000 {
		skipped = append(skipped, api.Skipped{Key: fmt.Sprintf("leno/leases/default/bad-%d", i), Reason: "nonsense"})
	}
	var out strings.Builder
	WriteSkipped(&out, skipped)
	if n := strings.Count(out.String(), "\n"); n != maxSkipped+3 || !strings.Contains(out.String(), "Skipped 10000 unusable records:") ||
		!strings.HasSuffix(out.String(), "  and 9900 more: -format=json names all\n") {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
	out.Reset()
	WriteSkipped(&out, skipped[:maxSkipped])
	if strings.Contains(out.String(), "more") {
		t.Errorf("got\n%s", out.String())
	}
}
