package registry

import (
	"context"
	"time"
)

// Sleep waits for a time, or for the end of ctx, whose error it returns.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
