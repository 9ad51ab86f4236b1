// Package seed gives tests randomness that can be repeated.
package seed

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Variable names the environment variable with the seed of a run, a number. Without it, each test has a seed of its own
// that never changes. `make stress` sets it to the number of the run.
const Variable = "LENO_TEST_SEED"

// Rand returns a source of random numbers for the test and logs its seed, which Variable sets again.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	hash := fnv.New64a()
	hash.Write([]byte(t.Name())) // never fails
	n := uint64(0)
	if text := os.Getenv(Variable); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", Variable, err)
		}
	}
	t.Logf("%s=%d", Variable, n)
	return rand.New(rand.NewPCG(hash.Sum64(), n))
}
