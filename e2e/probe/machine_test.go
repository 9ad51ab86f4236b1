package probe

import (
	"testing"
	"time"
)

func TestParseBusy(t *testing.T) {
	got, err := parseBusy("cpu  100 10 50 9000 800 3 7 5 90 9\ncpu0 1 1 1 1 1 1 1\n")
	if want := 1700 * time.Millisecond; err != nil || got != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	for _, text := range []string{"", "intr 1 2 3 4 5 6 7 8\n", "cpu  1 2 3\n", "cpu  a 2 3 4 5 6 7 8\n"} {
		if got, err := parseBusy(text); err == nil {
			t.Errorf("%q: %s and no error", text, got)
		}
	}
}

func TestBusyGrows(t *testing.T) {
	before, err := Busy()
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		after, err := Busy()
		if err != nil {
			t.Fatal(err)
		}
		if after > before {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s before and after ten busy seconds", before)
		}
	}
}
