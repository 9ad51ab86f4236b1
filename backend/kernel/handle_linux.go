package kernel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Handle is a set of sockets to the kernel of one network namespace. It must be used by one
// goroutine at a time.
type Handle struct {
	nl     *netlink.Handle // everything except routes: NeighList fails with EINVAL on a strict socket
	strict *netlink.Handle // route listings, filtered by protocol inside the kernel
	batch  *batch          // all writes of table entries

	// Sizes of the last listings. Growing a map step by step takes longer than the kernel takes.
	routes, neighbours, fdb int
}

// requestTimeout bounds one exchange with the kernel. Listing 5,000 entries takes 20 ms; only a
// kernel in trouble needs seconds.
const requestTimeout = 30 * time.Second

// receiveBuffer is large enough for the answers to a listing or a batch. It is forced past rmem_max
// where privileges allow.
const receiveBuffer = 4 << 20

// Open opens the sockets in the calling thread's network namespace. It needs no privileges; writes
// need CAP_NET_ADMIN.
func Open() (*Handle, error) {
	h := &Handle{}
	if err := h.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink sockets: %w", err), h.Close())
	}
	return h, nil
}

func (h *Handle) open() (err error) {
	if h.nl, err = newHandle(); err != nil {
		return err
	}
	if h.strict, err = newHandle(); err != nil {
		return err
	}
	// Kernels before 4.20 do not know the option; the library filters again.
	if err := h.strict.SetStrictCheck(true); err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
		return err
	}
	h.batch, err = newBatch()
	return err
}

func newHandle() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	if err := h.SetSocketReceiveBufferSize(receiveBuffer, true); err != nil {
		_ = h.SetSocketReceiveBufferSize(receiveBuffer, false) // best effort without CAP_NET_ADMIN
	}
	if err := h.SetSocketTimeout(requestTimeout); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Close closes the sockets and leaves the kernel's tables as they are. It may be called more than
// once.
func (h *Handle) Close() error {
	var err error
	if h.nl != nil {
		h.nl.Close()
	}
	if h.strict != nil {
		h.strict.Close()
	}
	if h.batch != nil {
		err = h.batch.close()
	}
	h.nl, h.strict, h.batch = nil, nil, nil
	return err
}

// listAttempts is how often a listing is tried when it is interrupted.
const listAttempts = 3

// listing repeats list until it is not interrupted. After the last attempt it returns what was read
// with ErrInterrupted.
func listing[T any](ctx context.Context, list func() (T, error)) (T, error) {
	for attempt := 1; ; attempt++ {
		got, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return got, err
		}
		if attempt == listAttempts || ctx.Err() != nil {
			return got, ErrInterrupted
		}
	}
}

// unused returns the first key, starting with key, that has no entry.
func unused[K comparable, V any](entries map[K]V, key K, next func(*K)) K {
	for {
		if _, taken := entries[key]; !taken {
			return key
		}
		next(&key)
	}
}
