// Package program is the frame of the programs below e2e/cmd. It owns signals,
// the error that a user sees, and the exit code.
package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Main runs a program with its arguments until it is done, SIGINT or SIGTERM
// comes, which end run's context, and returns the exit code: 0, or 1 with the
// error on standard error. run puts away what it set up before it returns.
func Main(name string, run func(ctx context.Context, args []string) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	if ctx.Err() != nil {
		err = errors.New("interrupted") // everything else that is wrong follows from it
	}
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}
