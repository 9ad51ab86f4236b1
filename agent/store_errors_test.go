package agent

import (
	"errors"
	"fmt"
	"testing"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/registry"
)

func TestClassify(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want retry.Class
	}{
		{fmt.Errorf("renew: %w", registry.ErrUnavailable), retry.Unavailable},
		{fmt.Errorf("%w: %w", registry.ErrUncertain, registry.ErrDenied), retry.Denied},
		{registry.ErrNetworkFull, retry.NeedsOperator},
		{registry.ErrNetworkNotFound, retry.NeedsOperator},
		{registry.ErrInvalid, retry.NeedsOperator},
		{registry.ErrDuplicateNode, retry.NeedsOperator},
		{registry.ErrDuplicateAddress, retry.NeedsOperator},
		{registry.ErrHeld, retry.NeedsOperator},
		{fmt.Errorf("define network n: %w", registry.ErrNotSupported), retry.NeedsOperator},
		{registry.ErrUncertain, retry.Transient},
		{registry.ErrConflict, retry.Transient},
		{errors.New("no such device"), retry.Transient},
	} {
		if got := classify(tt.err); got != tt.want {
			t.Errorf("%v: class %d, want %d", tt.err, got, tt.want)
		}
	}
}
