package doctor

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAnswerFromError checks what the end of a wait for an answer says about whether a peer's host can be reached.
func TestAnswerFromError(t *testing.T) {
	failed := func(err error) error {
		return &net.OpError{Op: "read", Net: "udp", Err: os.NewSyscallError("recvfrom", err)}
	}
	for _, tt := range []struct {
		err  error
		want Answer
	}{
		{context.Canceled, Unknown},
		{context.DeadlineExceeded, No},
		{&net.OpError{Op: "read", Net: "udp", Err: os.ErrDeadlineExceeded}, No},
		{failed(unix.ECONNREFUSED), Yes},
		{failed(unix.EHOSTUNREACH), Yes},
		{failed(unix.ENETUNREACH), Yes},
		{failed(unix.EACCES), Yes},
		{failed(unix.EPERM), Unknown}, // rules of this host
		{errors.New("another error"), Unknown},
	} {
		if got := answerFromError(tt.err); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
}
