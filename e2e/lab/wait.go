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
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last: %w", what, context.Cause(ctx), last)
		case <-time.After(pause):
		}
	}
}
