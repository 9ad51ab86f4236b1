package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"syscall"
	"time"
)

// turn blocks until few enough test labs are up on this machine, in any process, and takes a place
// among them until it is closed or its process ends. Several packages run at the same time, and
// each lab runs a dozen programs.
func turn(ctx context.Context) (io.Closer, error) {
	most := 5 * max(2, runtime.GOMAXPROCS(0))
	began := time.Now()
	for {
		for i := range most {
			// The kernel removes a socket with an abstract name when its process ends.
			place, err := net.Listen("unix", fmt.Sprintf("@leno-test-lab-%d", i))
			if err == nil {
				return place, nil
			}
			if !errors.Is(err, syscall.EADDRINUSE) {
				return nil, err
			}
		}
		// A lab that looks more often gets a place sooner, so one that has waited for long looks most often.
		pause := max(2*time.Millisecond, 50*time.Millisecond-time.Since(began)/400)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait until fewer than %d labs of tests are up: %w", most, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}
