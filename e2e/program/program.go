// Package program is the frame of the programs below e2e/cmd. It owns the handling of signals, the
// error message and the exit code.
package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Main runs a program with its arguments until it is done or SIGINT or SIGTERM cancels run's
// context. It returns the exit code: 0, or 1 after it has printed the error to standard error. run
// removes what it set up before it returns.
func Main(name string, run func(ctx context.Context, args []string) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	if ctx.Err() != nil {
		err = errors.New("interrupted") // all other errors are consequences of the signal
	}
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

// WriteJSON writes a result as JSON for people.
func WriteJSON(out io.Writer, result any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(result)
}
