package flapping

import (
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/backend"
)

// TestDetector records the same fault at an even pace, and checks what is logged and when the fault is flapping.
func TestDetector(t *testing.T) {
	one := backend.Repair{Fault: "device was down"}
	for _, tt := range []struct {
		name             string
		every            time.Duration
		times            int
		single, repeated int  // lines
		flapping         bool // at the end
	}{
		{"once", time.Second, 1, 1, 0, false},
		{"five times at once", 0, 5, 5, 0, false},
		{"six times at once", 0, 6, 5, 1, true},
		{"a hundred times in a minute", 600 * time.Millisecond, 100, 5, 1, true},
		{"each second for ten minutes", time.Second, 600, 5, 10, true},
		{"each minute for an hour", time.Minute, 60, 5, 55, true},
		{"each 61 s for an hour", 61 * time.Second, 60, 60, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d Detector
			now := time.Unix(1e9, 0)
			single, repeated := 0, 0
			texts := map[string]bool{}
			for i := range tt.times {
				if i > 0 {
					now = now.Add(tt.every)
				}
				if ended := d.Settle(now); len(ended) > 0 {
					t.Errorf("ended after %d: %q", i, ended)
				}
				s, q := d.Record(now, []backend.Repair{one})
				single += len(s)
				repeated += len(q)
				if in := d.Describe(); in != "" {
					texts[in] = true
				}
			}
			if len(texts) > repeated {
				t.Errorf("health says %d things, %d lines were written", len(texts), repeated)
			}
			if single != tt.single || repeated != tt.repeated {
				t.Errorf("%d and %d lines, want %d and %d", single, repeated, tt.single, tt.repeated)
			}
			if text := d.Describe(); (text != "") != tt.flapping || tt.flapping && !strings.HasPrefix(text, "device was down (") {
				t.Errorf("flapping %q", text)
			}
			if got := d.Count(); (got == 1) != tt.flapping || got > 1 {
				t.Errorf("%d faults are flapping", got)
			}
			// Another fault is reported as ever.
			if s, q := d.Record(now, []backend.Repair{{Fault: "routes were missing", Detail: "one"}}); len(s) != 1 || len(q) != 0 {
				t.Errorf("another fault: %v, %v", s, q)
			}
			ended := d.Settle(now.Add(EndsAfter + time.Second))
			if (len(ended) == 1) != tt.flapping || d.Describe() != "" {
				t.Errorf("two minutes later: ended %q, flapping %q", ended, d.Describe())
			}
			d.Settle(now.Add(countedFor + time.Second))
			if len(d.faults) != 0 {
				t.Errorf("remembers %d faults for ever", len(d.faults))
			}
		})
	}
}
