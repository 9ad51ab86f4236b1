package udp

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/udp/offload"
)

// tun is one queue of a persistent TUN device.
//
// It is opened here rather than with wireguard-go's tun package, which never sets persistence, has
// one queue, and copies every payload on its way through user space.
type tun struct {
	fd     int
	can    offloads
	failed int // failed reads in a row

	unsteered error // why there is one queue although several were wanted

	mu  sync.Mutex // for iov
	iov []unix.Iovec
}

var _ Device = (*tun)(nil)

// openTUN attaches to a number of queues of the TUN device with the given name in the calling
// thread's network namespace, and creates the device if there is none. The device stays when its
// descriptors are closed or the process dies; addresses and routes stay with it unless it is set
// down. openTUN enables those of the wanted offloads that the kernel supports. If the kernel cannot
// be told which queue to use for a flow, it attaches to a single queue.
func openTUN(name string, queues int, want offloads) (_ []*tun, err error) {
	var out []*tun
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(out))
		}
	}()
	for range queues {
		fd, err := kernel.OpenTUN(name, unix.IFF_MULTI_QUEUE)
		if err != nil {
			return out, err
		}
		t := &tun{fd: fd, iov: make([]unix.Iovec, 0, maxIOV)}
		out = append(out, t)
		if t.can, err = setOffloads(fd, want); err != nil {
			return out, fmt.Errorf("attach to tun device %s: %w", name, err)
		}
		if len(out) == 1 && queues > 1 && want.steer {
			t.unsteered = steer(fd)
			t.can.steer = t.unsteered == nil
			if errors.Is(t.unsteered, unix.EMFILE) || errors.Is(t.unsteered, unix.ENFILE) { // says nothing about the kernel
				return out, fmt.Errorf("attach to tun device %s: %w", name, t.unsteered)
			}
		}
		if !out[0].can.steer {
			break
		}
	}
	return out, nil
}

// setOffloads enables those of the wanted offloads that the kernel supports: UDP segmentation needs
// Linux 6.2. Offloads belong to the device and outlive the process that set them, so they are
// always set, even to none.
func setOffloads(fd int, want offloads) (offloads, error) {
	for _, try := range []offloads{want, {tso: want.tso}, {}} {
		flags := 0
		if try.tso {
			flags |= unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN
		}
		if try.uso {
			flags |= unix.TUN_F_CSUM | unix.TUN_F_USO4 | unix.TUN_F_USO6
		}
		err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, flags)
		if err == nil {
			try.segment, try.gro = want.segment, want.gro
			return try, nil
		}
		if !errors.Is(err, unix.EINVAL) {
			return offloads{}, fmt.Errorf("set offloads: %w", err)
		}
	}
	return offloads{}, errors.New("the kernel lets offloads be switched neither on nor off")
}

// FD implements Device.
func (t *tun) FD() int { return t.fd }

// Read implements Device. It fails with EBADFD when the link is deleted.
func (t *tun) Read(buf []byte, frames [][]byte) (n int, err error) {
	for n < len(frames) && len(buf) >= maxFrame {
		size, errno := read(t.fd, buf)
		switch {
		case errno == 0:
			frames[n] = buf[:size:size]
			buf = buf[align(size):]
			n++
			t.failed = 0
		case errno == unix.EAGAIN:
			return n, nil
		case errno == unix.EINTR:
		case n > 0:
			return n, nil // the next call gets the error again
		case errno == unix.EBADFD || t.failed == patience:
			return 0, errno
		default:
			t.failed++
			return 0, nil
		}
	}
	return n, nil
}

// deleted reports whether a read failed because the link is gone.
func deleted(err error) bool { return errors.Is(err, unix.EBADFD) }

// align rounds up to whole cache lines.
func align(n int) int { return (n + 63) &^ 63 }

func read(fd int, buf []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
	return int(n), errno
}

// Write implements Device. It fails with EIO while the link is down.
func (t *tun) Write(frames []offload.Frame) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range frames {
		f := &frames[i]
		t.iov = append(t.iov[:0], vector(f.Header[:]))
		for _, part := range f.Parts {
			t.iov = append(t.iov, vector(part))
		}
		for {
			_, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(t.fd), uintptr(unsafe.Pointer(&t.iov[0])),
				uintptr(len(t.iov)))
			if errno == 0 {
				break
			}
			if errno != unix.EINTR {
				return i, errno
			}
		}
	}
	return len(frames), nil
}

// Takes implements Device.
func (t *tun) Takes() offload.Kinds { return offload.Kinds{TCP: t.can.tso, UDP: t.can.uso} }

// Close implements Device.
func (t *tun) Close() error { return closeOnce(&t.fd) }

// closeOnce closes a descriptor and forgets it.
func closeOnce(fd *int) error {
	if *fd < 0 {
		return nil
	}
	err := unix.Close(*fd)
	*fd = -1
	return err
}
