package udp

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// descriptor is a non-blocking file descriptor that some goroutines use while
// another may close it.
//
// It stands beside the runtime's poller, not on it: while there is traffic no
// goroutine of the forwarder waits at all, and when there is none a thread
// blocked in poll(2) is back sooner than a goroutine that another thread must
// first find in epoll.
type descriptor struct {
	fd     int
	wake   int          // eventfd that is readable from the beginning of close on
	use    sync.RWMutex // held for reading while fd is in use
	closed atomic.Bool
}

// newDescriptor takes over a non-blocking fd, also when it fails.
func newDescriptor(fd int) (*descriptor, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), unix.Close(fd))
	}
	return &descriptor{fd: fd, wake: wake}, nil
}

// enter begins a use of fd and says whether it may be used. leave ends it.
func (d *descriptor) enter() bool {
	d.use.RLock()
	if d.closed.Load() {
		d.use.RUnlock()
		return false
	}
	return true
}

func (d *descriptor) leave() { d.use.RUnlock() }

// wait blocks until fd is ready for events or in error, and says whether it may
// still be used. It is called between enter and leave.
func (d *descriptor) wait(events int16) bool {
	fds := [2]unix.PollFd{{Fd: int32(d.fd), Events: events}, {Fd: int32(d.wake), Events: unix.POLLIN}}
	for !d.closed.Load() {
		// Any other error than EINTR shows again in what is waited for.
		if _, err := unix.Poll(fds[:], -1); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return !d.closed.Load()
}

// close ends every wait and closes fd when nobody uses it any more. It may be
// repeated.
func (d *descriptor) close() error {
	if d.closed.Swap(true) {
		return nil
	}
	one := [8]byte{1}
	_, err := unix.Write(d.wake, one[:])
	d.use.Lock()
	defer d.use.Unlock()
	return errors.Join(err, unix.Close(d.fd), unix.Close(d.wake))
}

// vector describes memory to the kernel.
func vector(b []byte) (v unix.Iovec) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
	return v
}

// yields is how often a reader that found nothing lets other threads run and
// looks again before it goes to sleep.
const yields = 3

// yield lets other threads of the machine run that wait for this CPU.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
