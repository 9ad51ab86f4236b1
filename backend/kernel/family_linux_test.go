package kernel_test

import (
	"testing"

	"github.com/lenonet/leno/backend/kernel"
)

// TestHasFamily asks for the family that lists the others, which every kernel has, and for one that none has.
func TestHasFamily(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"nlctrl": true, "leno-none": false} {
		if has, err := kernel.HasFamily(name); err != nil || has != want {
			t.Errorf("%s: %t, %v", name, has, err)
		}
	}
}
