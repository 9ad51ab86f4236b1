package lab

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// A Capture reads every frame that passes through the interfaces of a namespace.
type Capture struct {
	fd   int
	stop chan struct{}
	done sync.WaitGroup
	err  error
}

// captureBuffer is the receive buffer in bytes: seconds of a busy machine's frames.
const captureBuffer = 64 << 20

// StartCapture calls seen for each frame, beginning with its Ethernet header, until Stop is called. seen must not keep
// the slice.
func (n *Namespace) StartCapture(seen func(frame []byte)) (*Capture, error) {
	c := &Capture{stop: make(chan struct{})}
	err := n.Do(func() (err error) {
		everything := uint16(unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8) // in network byte order
		c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(everything))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer),
		unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("capture: %w", err), unix.Close(c.fd))
	}
	c.done.Go(func() { c.err = c.read(seen) })
	return c, nil
}

func (c *Capture) read(seen func([]byte)) error {
	frame := make([]byte, 1<<17)
	for {
		n, _, err := unix.Recvfrom(c.fd, frame, 0)
		switch {
		case err == nil:
			seen(frame[:n])
			continue
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("capture: %w", err)
		}
		select {
		case <-c.stop: // once all that had arrived has been read
			return nil
		default:
		}
	}
}

// Stop ends the capture when all frames that have arrived were seen. It returns an error if any were lost.
func (c *Capture) Stop() error {
	close(c.stop)
	c.done.Wait()
	lost, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err == nil && lost.Drops > 0 {
		err = fmt.Errorf("capture: %d of %d frames were lost", lost.Drops, lost.Packets)
	}
	return errors.Join(c.err, err, unix.Close(c.fd))
}
