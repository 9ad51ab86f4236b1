package udp

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wait sleeps until the lane has something to carry, or the engine pauses.
func (l *lane) wait() {
	fds := [3]unix.PollFd{{Fd: int32(l.e.wake.fd), Events: unix.POLLIN}, {Fd: -1}, {Fd: -1}} // poll(2) ignores -1
	if l.reads {
		fds[1] = unix.PollFd{Fd: int32(l.device.FD()), Events: unix.POLLIN}
	}
	if l.receives {
		fds[2] = unix.PollFd{Fd: int32(l.bind.FD()), Events: unix.POLLIN}
	}
	// Whatever the result, even EINTR, the caller looks at both ends again.
	_, _ = unix.Poll(fds[:], -1)
}

// wakeup wakes any number of sleeping lanes.
type wakeup struct{ fd int }

func newWakeup() (*wakeup, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &wakeup{fd}, nil
}

// ring wakes the lanes. Lanes that call wait later do not sleep either.
func (w *wakeup) ring() {
	one := [8]byte{1}
	for {
		// No error other than EINTR is possible for an eventfd that counts to one.
		if _, err := unix.Write(w.fd, one[:]); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (w *wakeup) close() { _ = unix.Close(w.fd) }

// yield lets other threads of the machine run that wait for this CPU.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// vector describes a buffer to the kernel.
func vector(b []byte) (v unix.Iovec) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
	return v
}

// patience is how often in a row an end may fail before it is given up. Some errors concern only
// one packet, or a condition that is already over.
const patience = 16
