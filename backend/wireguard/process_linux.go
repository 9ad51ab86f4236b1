package wireguard

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	wg "golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/lenonet/leno/backend/kernel"
)

// processDevice is WireGuard in this process, between a TUN device and UDP sockets.
type processDevice struct {
	engine *wg.Device
	tun    *tunDevice
	up     bool
	port   int // that it listens on or is to listen on

	socketPath string         // by which wg(8) finds the device, which works without it
	control    *controlSocket // nil if it could not be opened
	unserved   error          // why control is nil
}

var _ variant = (*processDevice)(nil)

// openProcess attaches to the TUN device with a name in the calling thread's network namespace, and creates it if there
// is none. It is down until Up.
func openProcess(link string, mtu int, socketPath string, log hclog.Logger) (*processDevice, error) {
	t, err := openTUN(link, mtu)
	if err != nil {
		return nil, err
	}
	// Errors are about single packets, or are returned as well.
	engine := wg.NewDevice(t, newCollisionBind(&boundedBind{conn.NewStdNetBind(), t.in, t.out}), &wg.Logger{
		Verbosef: wg.DiscardLogf,
		Errorf:   func(format string, args ...any) { log.Debug("wireguard", "message", fmt.Sprintf(format, args...)) },
	})
	d := &processDevice{engine: engine, tun: t, socketPath: socketPath}
	d.serve()
	return d, nil
}

// serve opens the control socket, unless it is open.
func (d *processDevice) serve() {
	if d.control != nil && d.control.reachable() {
		return
	}
	if d.control != nil {
		_ = d.control.Close() // its path leads elsewhere
	}
	d.control, d.unserved = serve(d.socketPath, d.engine.IpcHandle)
}

// Up implements variant.
func (d *processDevice) Up(mtu int) error {
	d.tun.setMTU(mtu)
	if d.up {
		return nil
	}
	err := retryWhileInUse(func() error {
		// The engine forgets the port when it cannot listen on it.
		return errors.Join(d.listen(), d.engine.Up())
	})
	if err != nil {
		return fmt.Errorf("listen on udp port %d: %w", d.port, err)
	}
	d.up = true
	return nil
}

// Alive implements variant: the TUN device has not been deleted. It opens the control socket again if another program
// has removed it.
func (d *processDevice) Alive(netlink.Link) bool {
	select {
	case <-d.engine.Wait():
		return false
	default:
		d.serve()
		return true
	}
}

// Note implements variant.
func (d *processDevice) Note() string {
	if d.control != nil {
		return ""
	}
	return fmt.Sprintf("wg(8) cannot show the device: %v", d.unserved)
}

// State implements variant.
func (d *processDevice) State() (*wgtypes.Device, error) {
	text, err := d.engine.IpcGet()
	if err != nil {
		return nil, err
	}
	return decodeState(text)
}

// Inspect implements variant.
func (d *processDevice) Inspect() (*wgtypes.Device, error) { return d.State() }

// Configure implements variant.
func (d *processDevice) Configure(c wgtypes.Config) error {
	err := d.engine.IpcSet(encodeConfig(c))
	if c.ListenPort == nil {
		return err
	}
	if err == nil {
		d.port = *c.ListenPort
		return nil
	}
	// The sockets were closed for the other port.
	return errors.Join(fmt.Errorf("listen on udp port %d: %w", *c.ListenPort, err), retryWhileInUse(d.listen))
}

// listen opens the sockets on the device's port, if the device is up.
func (d *processDevice) listen() error {
	return d.engine.IpcSet(encodeConfig(wgtypes.Config{ListenPort: &d.port}))
}

// retryWhileInUse repeats an attempt to listen on a port while that is in use, for a second at most. A program that
// this process is just starting has copies of sockets that were closed until it runs.
func retryWhileInUse(listen func() error) error {
	const tries, pause = 100, 10 * time.Millisecond
	for try := 1; ; try++ {
		err := listen()
		if !errors.Is(err, unix.EADDRINUSE) || try == tries {
			return err
		}
		time.Sleep(pause)
	}
}

// Close implements variant.
func (d *processDevice) Close() error {
	var err error
	if d.control != nil {
		err = d.control.Close()
		d.control = nil
	}
	d.engine.Close()
	<-d.engine.Wait()
	return err
}

// tunDevice is a TUN device with a limit of the packets that are on their way. Its MTU is set by its user, because the
// library would query the MTU in the network namespace of an arbitrary thread.
type tunDevice struct {
	tun.Device
	mtu     atomic.Int64
	events  chan tun.Event
	close   func() error
	in, out *backlog
	last    int // number of packets that the last Read returned
}

// MTU implements tun.Device.
func (t *tunDevice) MTU() (int, error) { return int(t.mtu.Load()), nil }

// Read implements tun.Device.
func (t *tunDevice) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	t.out.wait(bufs[:t.last])
	n, err := t.Device.Read(bufs, sizes, offset)
	t.out.read(bufs[:n], offset, sizes)
	t.last = n
	for i := range n {
		completeChecksum(bufs[i][offset:][:sizes[i]])
	}
	return n, err
}

// Write implements tun.Device.
func (t *tunDevice) Write(bufs [][]byte, offset int) (int, error) {
	defer t.in.wrote(bufs)
	return t.Device.Write(bufs, offset)
}

// completeChecksum changes the UDP checksum of an IPv6 packet from 0 to 0xffff if the computed checksum is 0 (RFC 8200,
// 8.1). The library leaves the 0, and receivers drop such packets, which are one in 65,536. A 0 that the sender has
// written, which means that there is no checksum, stays.
func completeChecksum(packet []byte) {
	const addresses, payload, header, protocol, checksum = 8, 40, 8, 6, 46
	if len(packet) < payload+header || packet[0]>>4 != 6 || packet[protocol] != unix.IPPROTO_UDP ||
		packet[checksum] != 0 || packet[checksum+1] != 0 {
		return
	}
	sum := uint32(unix.IPPROTO_UDP + len(packet) - payload)
	for i, b := range packet[addresses:] {
		sum += uint32(b) << (8 * (1 - i&1)) // a packet has less than 2^16 bytes
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	if sum == 0xffff {
		packet[checksum], packet[checksum+1] = 0xff, 0xff
	}
}

// setMTU tells the engine the device's MTU, up to which it pads packets.
func (t *tunDevice) setMTU(mtu int) {
	if t.mtu.Swap(int64(mtu)) == int64(mtu) {
		return
	}
	select {
	case t.events <- tun.EventMTUUpdate:
	default: // an event that is already waiting has the same effect
	}
}

// Events implements tun.Device. The engine follows no link: it is up while this process has it.
func (t *tunDevice) Events() <-chan tun.Event { return t.events }

// Close implements tun.Device.
func (t *tunDevice) Close() error { return t.close() }

// openTUN attaches to a TUN device, which stays when the process ends.
func openTUN(name string, mtu int) (*tunDevice, error) {
	fd, err := kernel.OpenTUN(name, 0)
	if err != nil {
		return nil, err
	}
	inner, _, err := tun.CreateUnmonitoredTUNFromFD(fd) // owns fd from here on
	if err != nil {
		return nil, fmt.Errorf("attach to tun device %s: %w", name, err)
	}
	t := &tunDevice{Device: inner, events: make(chan tun.Event, 1), in: newBacklog(), out: newBacklog()}
	t.mtu.Store(int64(mtu))
	t.close = sync.OnceValue(func() error {
		close(t.events)
		return inner.Close()
	})
	return t, nil
}
