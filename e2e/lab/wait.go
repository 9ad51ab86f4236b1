package lab

import (
	"context"
	"fmt"
	"time"
)

// WaitFor calls done until it returns nil: every 20 ms at first, and less often the longer it
// takes. If ctx ends first, or after five minutes, which only a hang takes, the error names what
// was waited for and the last error of done.
func WaitFor(ctx context.Context, what string, done func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	began := time.Now()
	var last error
	for {
		err := done(ctx)
		if err == nil {
			return nil
		}
		// An error caused by the deadline says less than the one before.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		pause := min(max(time.Since(began)/20, 20*time.Millisecond), 250*time.Millisecond)
		if Sleep(ctx, pause) != nil {
			return fmt.Errorf("wait for %s: %w; last: %w", what, context.Cause(ctx), last)
		}
	}
}

// Sleep waits for d. If ctx ends first, it returns its error.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
