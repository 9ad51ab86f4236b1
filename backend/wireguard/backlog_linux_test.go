package wireguard

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/conn/bindtest"
	wg "golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
)

func TestBacklog(t *testing.T) {
	t.Parallel()
	buffers := make([][]byte, 2*maxPending)
	for i := range buffers {
		buffers[i] = make([]byte, 10)
	}
	full, more := buffers[:maxPending], buffers[maxPending:]
	for name, tt := range map[string]struct {
		before   func(b *backlog)
		returned [][]byte
		waits    time.Duration
	}{
		"empty":               {func(b *backlog) {}, nil, 0},
		"one less":            {func(b *backlog) { b.read(full[1:], 0, nil) }, nil, 0},
		"full":                {func(b *backlog) { b.read(full, 0, nil) }, nil, 2 * pendingTime},
		"read again":          {func(b *backlog) { b.read(full[1:], 0, nil); b.read(full[1:], 0, nil) }, nil, 0},
		"written":             {func(b *backlog) { b.read(full, 0, nil); b.wrote(full[:1]) }, nil, 0},
		"parts of it written": {func(b *backlog) { b.read(full, 0, nil); b.wrote([][]byte{full[0][:4]}) }, nil, 0},
		"others written":      {func(b *backlog) { b.read(full, 0, nil); b.wrote(more) }, nil, 2 * pendingTime},
		"dropped":             {func(b *backlog) { b.read(full, 0, nil) }, full[3:4], 0},
		"older ones": {func(b *backlog) {
			b.read(full[1:], 0, nil)
			time.Sleep(pendingTime)
			b.wait(nil)
			b.read(full[:1], 0, nil)
		}, nil, pendingTime},
		"stuck ones": {func(b *backlog) {
			b.read(full, 0, nil)
			b.wait(nil)
			b.read(more[1:], 0, nil)
		}, nil, 0},
		"written while waiting": {func(b *backlog) {
			b.read(full, 0, nil)
			time.AfterFunc(pendingTime/4, func() { b.wrote(full[:1]) })
		}, nil, pendingTime / 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBacklog()
				b.wait(nil)
				tt.before(b)
				start := time.Now()
				b.wait(tt.returned)
				if waited := time.Since(start); waited != tt.waits {
					t.Errorf("waited for %v, want %v", waited, tt.waits)
				}
			})
		})
	}
}

// TestBacklogOfDeadPeers: packets to a peer that never leave hardly slow down those to others, and count again later.
func TestBacklogOfDeadPeers(t *testing.T) {
	t.Parallel()
	to := func(last byte) []byte {
		return []byte{0x45, 16: 10, 17: 5, 18: last, 19: 1}
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog()
		start := time.Now()
		const packets = 100_000
		kept := make([][]byte, packets)
		for i := range kept {
			kept[i] = to(7)
			b.wait(nil)
			b.read(kept[i:i+1], 0, []int{20})
		}
		if took := time.Since(start); took > 4*pendingTime {
			t.Errorf("%d packets to a dead peer took %s", packets, took)
		}
		start = time.Now()
		for range maxPending + 1 {
			b.wait(nil)
			kept = append(kept, to(8))
			b.read(kept[len(kept)-1:], 0, []int{20})
		}
		if time.Since(start) == 0 {
			t.Error("packets to another peer do not count")
		}
		for range 2 {
			time.Sleep(stuckTime)
			b.wait(nil)
		}
		kept = append(kept, to(7))
		if b.read(kept[len(kept)-1:], 0, []int{20}); b.counted != 1 {
			t.Errorf("after a while, %d packets count", b.counted)
		}
	})
}

// TestBacklogReaders checks that a write lets two readers go on.
func TestBacklogReaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog()
		b.wait(nil)
		full := make([][]byte, maxPending)
		for i := range full {
			full[i] = make([]byte, 10)
		}
		b.read(full, 0, nil)
		start, ended := time.Now(), make(chan time.Duration)
		for range 2 {
			go func() {
				b.wait(nil)
				ended <- time.Since(start)
			}()
		}
		synctest.Wait()
		b.wrote(full)
		for range 2 {
			if waited := <-ended; waited != 0 {
				t.Errorf("waited for %v", waited)
			}
		}
	})
}

// A direction returns how packets are read in one direction, and written.
type direction func(t *testing.T, tun *tunDevice, in *tuntest.ChannelTUN, bind *boundedBind, from conn.Bind) (read, write func([]byte))

// TestBacklogOfDevice checks that packets from the sockets wait until those before are written to the TUN device, and the
// other way round.
func TestBacklogOfDevice(t *testing.T) {
	t.Parallel()
	const peer = bindtest.ChannelEndpoint(1)
	for name, direct := range map[string]direction{
		"in": func(t *testing.T, tun *tunDevice, in *tuntest.ChannelTUN, bind *boundedBind, from conn.Bind) (read, write func([]byte)) {
			receivers, _, err := bind.Open(0)
			mustNil(t, err)
			return func(buffer []byte) {
					mustNil(t, from.Send([][]byte{{wg.MessageTransportType}}, bindtest.ChannelEndpoint(2)))
					_, err := receivers[0]([][]byte{buffer}, make([]int, 1), make([]conn.Endpoint, 1))
					mustNil(t, err)
				}, func(buffer []byte) {
					go func() { <-in.Inbound }()
					_, err := tun.Write([][]byte{buffer}, 0)
					mustNil(t, err)
				}
		},
		"out": func(t *testing.T, tun *tunDevice, in *tuntest.ChannelTUN, bind *boundedBind, _ conn.Bind) (read, write func([]byte)) {
			_, _, err := bind.Open(0)
			mustNil(t, err)
			return func(buffer []byte) {
					go func() { in.Outbound <- []byte{1} }()
					_, err := tun.Read([][]byte{buffer}, make([]int, 1), 0)
					mustNil(t, err)
				}, func(buffer []byte) {
					mustNil(t, bind.Send([][]byte{buffer}, peer))
				}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				in := tuntest.NewChannelTUN()
				tun := &tunDevice{Device: in.TUN(), in: newBacklog(), out: newBacklog()}
				binds := bindtest.NewChannelBinds()
				bind := &boundedBind{binds[0], tun.in, tun.out}
				_, _, err := binds[1].Open(0)
				mustNil(t, err)
				read, write := direct(t, tun, in, bind, binds[1])
				start := time.Now()
				var kept [][]byte // so that no buffer has the address of an earlier one
				readOne := func() {
					kept = append(kept, make([]byte, 10))
					read(kept[len(kept)-1])
				}
				for range maxPending {
					readOne()
				}
				if waited := time.Since(start); waited != 0 {
					t.Errorf("the first packets waited for %v", waited)
				}
				write(kept[0])
				readOne()
				if waited := time.Since(start); waited != 0 {
					t.Errorf("after a write, a packet waited for %v", waited)
				}
				readOne()
				runtime.KeepAlive(kept)
				if time.Since(start) == 0 {
					t.Error("a packet did not wait")
				}
			})
		})
	}
}
