package udp

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wait sleeps until there is something for the lane to carry, or the engine
// pauses.
func (l *lane) wait() {
	fds := [3]unix.PollFd{{Fd: int32(l.e.wake.fd), Events: unix.POLLIN}, {Fd: -1}, {Fd: -1}} // -1 is left out, poll(2)
	if l.reads {
		fds[1] = unix.PollFd{Fd: int32(l.device.FD()), Events: unix.POLLIN}
	}
	if l.receives {
		fds[2] = unix.PollFd{Fd: int32(l.bind.FD()), Events: unix.POLLIN}
	}
	// Whatever it says, EINTR too, the ends are looked at again.
	_, _ = unix.Poll(fds[:], -1)
}

// wakeup ends the sleep of any number of lanes.
type wakeup struct{ fd int }

func newWakeup() (*wakeup, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &wakeup{fd}, nil
}

// ring wakes them; those that come later do not sleep either.
func (w *wakeup) ring() {
	one := [8]byte{1}
	for {
		// Anything else than EINTR cannot be for an eventfd that counts to one.
		if _, err := unix.Write(w.fd, one[:]); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (w *wakeup) close() { _ = unix.Close(w.fd) }

// yield lets other threads of the machine run that wait for this CPU.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// vector describes memory to the kernel.
func vector(b []byte) (v unix.Iovec) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
	return v
}

// patience is how often in a row an end may fail before it is given up: some
// errors are about one packet, or about something that is over.
const patience = 16
