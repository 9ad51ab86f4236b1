package wireguard

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/conn/bindtest"
	wg "golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/tun/tuntest"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// busyBind refuses to open a port as often as busy says.
type busyBind struct {
	conn.Bind
	busy   map[uint16]int
	opened uint16
}

func (b *busyBind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	if b.busy[port] > 0 {
		b.busy[port]--
		return nil, 0, unix.EADDRINUSE
	}
	b.opened = port
	return b.Bind.Open(port)
}

// deviceOn returns a device with a bind, which is down until Up.
func deviceOn(bind conn.Bind) *processDevice {
	inner := tuntest.NewChannelTUN().TUN()
	t := &tunDevice{Device: inner, events: make(chan tun.Event, 1), in: newBacklog(), out: newBacklog()}
	t.close = sync.OnceValue(func() error {
		close(t.events)
		return inner.Close()
	})
	return &processDevice{engine: wg.NewDevice(t, bind, wg.NewLogger(wg.LogLevelSilent, "")), tun: t}
}

// TestListenWhenUp: a device listens on its port when it goes up, also if that is in use for a moment.
func TestListenWhenUp(t *testing.T) {
	for busy, want := range map[int]error{0: nil, 5: nil, 1000: unix.EADDRINUSE} {
		synctest.Test(t, func(t *testing.T) {
			bind := &busyBind{Bind: bindtest.NewChannelBinds()[0], busy: map[uint16]int{51820: busy}}
			d := deviceOn(bind)
			defer d.engine.Close()
			own := 51820
			if err := d.Configure(wgtypes.Config{ListenPort: &own}); err != nil {
				t.Fatal(err)
			}
			if err := d.Up(1420); !errors.Is(err, want) || err == nil && bind.opened != 51820 {
				t.Errorf("in use %d times: listens on %d, %v, want %v", busy, bind.opened, err, want)
			}
			bind.busy[51820] = 0
			if err := d.Up(1420); err != nil || bind.opened != 51820 {
				t.Errorf("in use %d times, then free: listens on %d, %v", busy, bind.opened, err)
			}
		})
	}
}

// TestListenAgain: a device that cannot have another port gets its own one back, also if that is in use for a moment.
func TestListenAgain(t *testing.T) {
	for _, busy := range []int{0, 5, 1000} {
		synctest.Test(t, func(t *testing.T) {
			bind := &busyBind{Bind: bindtest.NewChannelBinds()[0], busy: map[uint16]int{}}
			d := deviceOn(bind)
			defer d.engine.Close()
			own, other := 51820, 4444
			if err := errors.Join(d.Configure(wgtypes.Config{ListenPort: &own}), d.engine.Up()); err != nil {
				t.Fatal(err)
			}
			bind.busy[4444], bind.busy[51820], bind.opened = 1, busy, 0
			if err := d.Configure(wgtypes.Config{ListenPort: &other}); !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("a port in use: %v", err)
			}
			if want := map[bool]uint16{true: 51820}[busy < 100]; bind.opened != want {
				t.Errorf("in use %d times: listens on %d, want %d", busy, bind.opened, want)
			}
		})
	}
}
