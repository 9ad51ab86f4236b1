package probe

import "testing"

func TestLargestSize(t *testing.T) {
	for _, tt := range []struct {
		name           string
		low, high, mtu int
		path           int  // its MTU
		tells          bool // a router reports it
		most           int  // tries
	}{
		{"by halves", 64, 1500, 0, 1400, false, 11},
		{"hint from before", 64, 1500, 1400, 1400, false, 2},
		{"hint during the search", 64, 1500, 0, 600, true, 3},
		{"hint too large", 64, 1500, 1400, 1300, false, 12},
		{"hint too small", 64, 1500, 1000, 1400, false, 13},
		{"hint out of range", 64, 1500, 9000, 1400, false, 11},
		{"none but the small", 64, 1500, 0, 64, false, 11},
		{"all but the full", 64, 1500, 0, 1499, false, 11},
		{"jumbo", 64, 65_000, 0, 8950, false, 16},
		{"nothing between", 64, 65, 0, 64, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tries := 0
			got := largestSize(tt.low, tt.high, tt.mtu, func(size int) (bool, int) {
				tries++
				if size <= tt.low || size >= tt.high {
					t.Errorf("size %d was known before", size)
				}
				if size <= tt.path {
					return true, 0
				}
				if tt.tells {
					return false, tt.path
				}
				return false, 0
			})
			if got != tt.path || tries > tt.most {
				t.Errorf("%d after %d tries, want %d after %d", got, tries, tt.path, tt.most)
			}
		})
	}
	// A router that reports wrong MTUs does not make the search endless.
	tries := 0
	largestSize(64, 65_000, 0, func(size int) (bool, int) { tries++; return false, size - 1 })
	if tries > searchTries {
		t.Errorf("%d tries", tries)
	}
}
