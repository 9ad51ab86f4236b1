package offload

import (
	"testing"

	"github.com/lenonet/leno/internal/testkit/seed"
)

func TestChecksum(t *testing.T) {
	r := seed.Rand(t)
	b := fill(2100)
	for n := range len(b) {
		want := ^refSum(b[:n])
		if got := Checksum(b[:n], 0); got != want {
			t.Fatalf("%d bytes: %#04x, want %#04x", n, got, want)
		}
		cut := 2 * r.IntN(n/2+1)
		if got := Checksum(b[cut:n], Sum(b[:cut], 0)); got != want {
			t.Fatalf("%d bytes cut at %d: %#04x, want %#04x", n, cut, got, want)
		}
	}
}

// TestChecksumCarries tests carries out of all 64 bits, which are rare with random bytes.
func TestChecksumCarries(t *testing.T) {
	r := seed.Rand(t)
	for range 4000 {
		b := make([]byte, r.IntN(600))
		for i := range b {
			if r.IntN(50) > 0 {
				b[i] = 0xff
			}
		}
		// The largest possible sum stands for 0, as 0xffff does.
		if got, want := Checksum(b, ^uint64(0)), ^refSum([]byte{0xff, 0xff}, b); got != want {
			t.Fatalf("%x: %#04x, want %#04x", b, got, want)
		}
	}
}

func FuzzChecksum(f *testing.F) {
	f.Add([]byte{}, uint16(0))
	f.Add([]byte{0xff}, uint16(1))
	f.Add(fill(300), uint16(17))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		at := min(int(cut)*2, len(b)&^1)
		if got, want := Checksum(b[at:], Sum(b[:at], 0)), ^refSum(b); got != want {
			t.Fatalf("%#04x, want %#04x", got, want)
		}
	})
}
