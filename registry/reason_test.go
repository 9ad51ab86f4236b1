package registry_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/lenonet/leno/registry"
)

// TestReason checks that an unavailable store is reported with its cause and without the request that failed.
func TestReason(t *testing.T) {
	away := fmt.Errorf("watch networks: list leno/networks/: %w: %w", registry.ErrUnavailable, errors.New("connection refused"))
	other := fmt.Errorf("watch networks: %w", registry.ErrDenied)
	for _, tt := range []struct {
		err           error
		reason, brief string
	}{
		{away, "the store is unavailable: connection refused", "the store is unavailable"},
		{other, "watch networks: permission denied", "watch networks: permission denied"},
	} {
		if got := registry.Reason(tt.err); got != tt.reason {
			t.Errorf("Reason: got %q, want %q", got, tt.reason)
		}
		if got := registry.Brief(tt.err).Error(); got != tt.brief {
			t.Errorf("Brief: got %q, want %q", got, tt.brief)
		}
	}
}
