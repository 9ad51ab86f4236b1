package lab

import (
	"context"
	"fmt"
	"time"
)

// WaitFor calls done every 20 ms until it returns nil. When ctx ends first, or
// after a minute, the error says what was waited for and what done said last.
func WaitFor(ctx context.Context, what string, done func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := done(ctx)
		if err == nil {
			return nil
		}
		// An answer cut short by the deadline says less than the one before.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last: %w", what, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}
