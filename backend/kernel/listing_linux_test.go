package kernel

import (
	"context"
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestListingRepeatsWhatWasInterrupted(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name    string
		answers []error
		asked   int
		err     error
	}{
		{"at once", []error{nil}, 1, nil},
		{"interrupted twice", []error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted, nil}, 3, nil},
		{"interrupted always", []error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted, nil}, 3, ErrInterrupted},
		{"failed", []error{broken, nil}, 1, broken},
	} {
		asked := 0
		_, err := listing(t.Context(), func() (int, error) {
			asked++
			return asked, tt.answers[asked-1]
		})
		if !errors.Is(err, tt.err) || asked != tt.asked {
			t.Errorf("%s: asked %d times, error %v", tt.name, asked, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got, err := listing(ctx, func() (string, error) { return "partial", netlink.ErrDumpInterrupted })
	if got != "partial" || !errors.Is(err, ErrInterrupted) {
		t.Errorf("cancelled: %q, %v", got, err)
	}
}
