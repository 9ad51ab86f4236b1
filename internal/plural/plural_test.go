package plural

import "testing"

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 hosts", 1: "1 host", 2: "2 hosts"} {
		if got := Count(n, "host"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
