package telemetry

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// documented returns the table in the form of the documentation.
func documented() string {
	var b strings.Builder
	b.WriteString("| Prometheus | statsd, dogstatsd, JSON | kind | labels | what |\n|---|---|---|---|---|\n")
	for _, m := range Table() {
		labels := ""
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s |\n", m.Exposed(), m.Dotted(), m.Kind, labels, m.Help)
	}
	return b.String()
}

// TestDocumentation checks that the page's table of metrics is the one in the code.
func TestDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../website/content/docs/operations/telemetry.mdx")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\n## Metrics\n")
	_, table, _ := strings.Cut(rest, "\n| Prometheus")
	table, _, _ = strings.Cut("| Prometheus"+table, "\n\n")
	if diff := cmp.Diff(documented(), table+"\n"); diff != "" {
		t.Errorf("telemetry.mdx (-code +page):\n%s\nwanted:\n%s", diff, documented())
	}
}
