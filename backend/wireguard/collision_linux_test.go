package wireguard

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/conn/bindtest"
	wg "golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

func testInitiation(content byte) []byte {
	return append([]byte{wg.MessageInitiationType, 0, 0, 0}, bytes.Repeat([]byte{content}, wg.MessageInitiationSize-4)...)
}

// TestManyInitiations: a host that strangers send initiations to from ever more ports remembers some of them only, for a
// moment, and recognizes a simultaneous handshake with a peer again after that.
func TestManyInitiations(t *testing.T) {
	b := newCollisionBind(bindtest.NewChannelBinds()[0])
	if _, _, err := b.Open(0); err != nil {
		t.Fatal(err)
	}
	const peer = bindtest.ChannelEndpoint(1)
	now := time.Now()
	for i := range 3 * mostInitiations {
		if !b.passes(testInitiation(9), manyEndpoint(i), now) {
			t.Fatal("a stranger's initiation did not pass")
		}
	}
	if n := len(b.passed.newer) + len(b.passed.older); n > mostInitiations {
		t.Errorf("%d are remembered", n)
	}
	if !b.passes(testInitiation(1), peer, now) || !b.mayLeave(testInitiation(2), peer, now) {
		t.Error("beyond the limit, initiations are not held back")
	}
	now = now.Add(2 * collisionTime)
	b.passes(testInitiation(3), peer, now)
	if b.mayLeave(testInitiation(4), peer, now) {
		t.Error("a larger initiation was sent after a smaller one that had arrived")
	}
	b.passes(testInitiation(3), manyEndpoint(0), now.Add(2*collisionTime))
	if n := len(b.passed.newer) + len(b.passed.older); n > 2 {
		t.Errorf("%d are remembered after a while", n)
	}
}

// TestManyHeld: of many smaller initiations that are sent in the name of a peer, only some wait for an answer.
func TestManyHeld(t *testing.T) {
	b := newCollisionBind(bindtest.NewChannelBinds()[0])
	if _, _, err := b.Open(0); err != nil {
		t.Fatal(err)
	}
	const peer = bindtest.ChannelEndpoint(1)
	now, held := time.Now(), 0
	b.mayLeave(testInitiation(2), peer, now)
	for range 1000 {
		if !b.passes(testInitiation(1), peer, now) {
			held++
		}
	}
	if held == 0 || held > mostHeld {
		t.Errorf("%d are held back", held)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// manyEndpoint is the endpoint of one of many strangers.
type manyEndpoint int

func (e manyEndpoint) ClearSrc()           {}
func (e manyEndpoint) SrcToString() string { return "" }
func (e manyEndpoint) DstToString() string {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(e >> 12)}), uint16(e)).String()
}
func (e manyEndpoint) DstToBytes() []byte { return nil }
func (e manyEndpoint) DstIP() netip.Addr  { return netip.AddrFrom4([4]byte{192, 0, 2, 0}) }
func (e manyEndpoint) SrcIP() netip.Addr  { return netip.Addr{} }

// TestCollision checks that of two simultaneous initiations both sides handle the same one, and every other packet at once.
func TestCollision(t *testing.T) {
	t.Parallel()
	const peer, other = bindtest.ChannelEndpoint(1), bindtest.ChannelEndpoint(2)
	response := func(to byte) []byte {
		return append([]byte{wg.MessageResponseType, 0, 0, 0}, bytes.Repeat([]byte{to}, wg.MessageResponseSize-4)...)
	}
	for name, tt := range map[string]struct {
		own      byte
		before   []byte // received before
		received []byte
		from     conn.Endpoint
		at       time.Duration
		passes   bool
		later    bool
	}{
		"a larger one":                       {1, nil, testInitiation(2), peer, 0, true, false},
		"a smaller one":                      {2, nil, testInitiation(1), peer, 0, false, true},
		"a smaller one, just in time":        {2, nil, testInitiation(1), peer, collisionTime, false, true},
		"a smaller one, too late":            {2, nil, testInitiation(1), peer, collisionTime + 1, true, false},
		"a smaller one, of another peer":     {2, nil, testInitiation(1), other, 0, true, false},
		"a smaller one after an answer":      {2, response(2), testInitiation(1), peer, 0, false, false},
		"a smaller one after a wrong answer": {2, response(3), testInitiation(1), peer, 0, false, true},
		"an answer":                          {2, nil, response(2), peer, 0, true, false},
		"data":                               {2, nil, []byte{4}, peer, 0, true, false},
		"nothing":                            {2, nil, nil, peer, 0, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newCollisionBind(bindtest.NewChannelBinds()[0])
				receivers, _, err := b.Open(0)
				if err != nil {
					t.Fatal(err)
				}
				sent := time.Now()
				b.mayLeave(testInitiation(tt.own), peer, sent)
				if tt.before != nil && !b.passes(tt.before, peer, sent) {
					t.Error("a response did not pass")
				}
				if got := b.passes(tt.received, tt.from, sent.Add(tt.at)); got != tt.passes {
					t.Errorf("passes: %v", got)
				}
				time.AfterFunc(2*holdTime, func() { b.Close() })
				packets, sizes, from := [][]byte{make([]byte, 200)}, make([]int, 1), make([]conn.Endpoint, 1)
				n, err := receivers[len(receivers)-1](packets, sizes, from)
				if delivered := n == 1; delivered != tt.later || delivered && (!bytes.Equal(packets[0][:sizes[0]], tt.received) || from[0] != tt.from) {
					t.Errorf("delivered later: %v, %v", delivered, err)
				}
			})
		})
	}
}

// sendingBind records what is sent.
type sendingBind struct {
	conn.Bind
	sent chan []byte
}

func (b *sendingBind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) { return nil, port, nil }
func (b *sendingBind) Close() error                                         { return nil }
func (b *sendingBind) Send(packets [][]byte, _ conn.Endpoint) error {
	b.sent <- packets[0]
	return nil
}

// TestCollisionSent checks which initiations of this side wait for the answer to one that it has received.
func TestCollisionSent(t *testing.T) {
	t.Parallel()
	const peer, other = bindtest.ChannelEndpoint(1), bindtest.ChannelEndpoint(2)
	response := append([]byte{wg.MessageResponseType, 0, 0, 0}, bytes.Repeat([]byte{1}, wg.MessageResponseSize-4)...)
	for name, tt := range map[string]struct {
		theirs    byte // 0 for none
		from      conn.Endpoint
		ago       time.Duration
		answered  bool
		now, ever bool // whether the own one, 2, is sent at once, and whether it is sent at all
	}{
		"nothing received":           {0, nil, 0, false, true, true},
		"a larger one received":      {3, peer, 0, false, true, true},
		"a smaller one received":     {1, peer, 0, false, false, true},
		"a smaller one, answered":    {1, peer, 0, true, false, false},
		"a smaller one, long ago":    {1, peer, 2 * collisionTime, false, true, true},
		"a smaller one of another":   {1, other, 0, false, true, true},
		"the same one from the peer": {2, peer, 0, false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				inner := &sendingBind{sent: make(chan []byte, 3)}
				b := newCollisionBind(inner)
				if _, _, err := b.Open(0); err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				if tt.theirs != 0 && !b.passes(testInitiation(tt.theirs), tt.from, time.Now().Add(-tt.ago)) {
					t.Error("their initiation did not pass")
				}
				own := testInitiation(2)
				if err := b.Send([][]byte{own}, peer); err != nil {
					t.Fatal(err)
				}
				if now := len(inner.sent) == 1; now != tt.now {
					t.Errorf("sent at once: %t", now)
				}
				if tt.answered {
					if err := b.Send([][]byte{response}, peer); err != nil {
						t.Fatal(err)
					}
					if got := <-inner.sent; !bytes.Equal(got, response) {
						t.Errorf("sent %x", got)
					}
				}
				time.Sleep(10 * holdTime)
				select {
				case got := <-inner.sent:
					if !tt.ever || !bytes.Equal(got, own) {
						t.Errorf("sent %x", got)
					}
				default:
					if tt.ever {
						t.Error("never sent")
					}
				}
			})
		})
	}
}

// An end is one of two WireGuard devices that send to each other.
type end struct {
	*processDevice
	tun  *tuntest.ChannelTUN
	addr netip.Addr
	peer wgtypes.Key
}

// newEnds returns two devices that know each other and have no session.
func newEnds(t *testing.T) (out [2]*end) {
	t.Helper()
	var keys [2]wgtypes.Key
	for i := range keys {
		var err error
		if keys[i], err = wgtypes.GeneratePrivateKey(); err != nil {
			t.Fatal(err)
		}
	}
	binds := bindtest.NewChannelBinds()
	for i := range out {
		e := &end{tun: tuntest.NewChannelTUN(), addr: netip.AddrFrom4([4]byte{10, 5, byte(i + 1), 1}), peer: keys[1-i].PublicKey()}
		e.processDevice = &processDevice{engine: wg.NewDevice(e.tun.TUN(), newCollisionBind(binds[i]), wg.NewLogger(wg.LogLevelSilent, ""))}
		t.Cleanup(e.engine.Close)
		// The binds have no addresses, only ports: 3 and 4 are those that packets come from.
		port := []int{3, 4}[i]
		err := e.engine.IpcSet(fmt.Sprintf("private_key=%s\npublic_key=%s\nendpoint=127.0.0.1:%d\nallowed_ip=10.5.%d.0/24\n",
			hexKey(keys[i]), hexKey(e.peer), port, 2-i))
		if err != nil {
			t.Fatal(err)
		}
		if err := e.engine.Up(); err != nil {
			t.Fatal(err)
		}
		out[i] = e
	}
	return out
}

// reaches reports whether the device believes that it has a session, and whether a packet in it arrives.
func (e *end) reaches(t *testing.T, other *end) (believed, arrives bool) {
	state, err := e.State()
	if err != nil {
		t.Error(err)
		return false, false
	}
	if state.Peers[0].LastHandshakeTime.IsZero() {
		return false, false
	}
	e.tun.Outbound <- tuntest.Ping(other.addr, e.addr)
	select {
	case <-other.tun.Inbound:
		return true, true
	case <-time.After(4 * time.Second): // less than until the next handshake
		return true, false
	}
}

// TestSimultaneousHandshakes lets pairs of devices start handshakes at the same time. Each gets a session, and none
// believes that it has one in which nothing arrives. The devices have a clock of their own, which stands still while any of
// them has something to do: the time that a busy machine takes does not count.
func TestSimultaneousHandshakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, handshakeAtOnce)
}

func handshakeAtOnce(t *testing.T) {
	const pairs = 10
	start := make(chan struct{})
	var running sync.WaitGroup
	for range pairs {
		ends := newEnds(t)
		for i, e := range ends {
			running.Go(func() {
				<-start
				began := time.Now()
				var greeted time.Time
				for ; ; time.Sleep(10 * time.Millisecond) {
					if time.Since(greeted) > retryTime {
						greeted = time.Now()
						if err := greet(e.processDevice, map[wgtypes.Key]peer{e.peer: {}}); err != nil {
							t.Error(err)
						}
					}
					believed, arrives := e.reaches(t, ends[1-i])
					if believed != arrives {
						t.Error("a session in which nothing arrives")
					}
					if believed {
						return
					}
					if time.Since(began) > time.Minute {
						t.Error("no session")
						return
					}
				}
			})
		}
	}
	close(start)
	running.Wait()
}
