package probe

import (
	"context"
	"net/netip"
	"time"
)

// PingResult is what became of a few echo requests.
type PingResult struct {
	Sent, Answered int
	Reason         string // why one was not sent, or the error that a host returned; "" for none
}

// Ping sends echo requests of one size, in bytes, that must not be fragmented, and waits for all answers. from may be
// the zero address. Its sockets are opened on the calling thread, and thus in its network namespace. The error is
// ErrNoCapability or the kernel's.
func Ping(ctx context.Context, from, to netip.Addr, size, count int, timeout time.Duration) (PingResult, error) {
	s, err := open(ctx)
	if err != nil {
		return PingResult{}, err
	}
	e := echo{from: from, to: to, size: max(size, minSize)}
	out := PingResult{Sent: count}
	for _, a := range sendAll(count, func() func() answer { return s.send(ctx, e, timeout) }) {
		switch a.outcome {
		case gotReply:
			out.Answered++
		case gotError:
			out.Reason = a.reason + " from " + a.from.String()
		case notSent:
			out.Reason = a.reason
		}
	}
	return out, s.close()
}
