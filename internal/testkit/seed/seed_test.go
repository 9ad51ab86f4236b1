package seed

import "testing"

// TestRand: a test gets the same numbers in each run with the same seed, and others with another seed or name.
func TestRand(t *testing.T) {
	numbers := func(t *testing.T, seed string) [2]uint64 {
		t.Helper()
		t.Setenv(Variable, seed)
		r := Rand(t)
		return [2]uint64{r.Uint64(), r.Uint64()}
	}
	first := numbers(t, "7")
	if again := numbers(t, "7"); again != first {
		t.Errorf("the same seed: %d and %d", first, again)
	}
	if other := numbers(t, "8"); other == first {
		t.Errorf("another seed: %d again", other)
	}
	if none, zero := numbers(t, ""), numbers(t, "0"); none != zero {
		t.Errorf("no seed: %d, the seed 0: %d", none, zero)
	}
	t.Run("another name", func(t *testing.T) {
		if other := numbers(t, "7"); other == first {
			t.Errorf("%d again", other)
		}
	})
}
