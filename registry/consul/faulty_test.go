package consul

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"

	"github.com/lenonet/leno/internal/testkit/ports"
)

// faulty is a proxy between a client and its server that can be set to pass on requests, answer them wrongly or not
// answer them.
type faulty struct {
	gate *gate

	mu      sync.Mutex
	fault   fault // for matching requests; nil for none
	wanted  func(r *http.Request) bool
	met     int // number of matching requests
	request int // number of all requests
}

// fault answers a request; pass is the server's own handler.
type fault func(w http.ResponseWriter, r *http.Request, pass http.Handler)

func newFaulty(t *testing.T, s *server) *faulty {
	f := &faulty{gate: newGate(t)}
	pass := passTo(t, s)
	pass.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, err error) {
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
	p := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.request++
		fault := f.fault
		if fault != nil && f.wanted != nil && !f.wanted(r) {
			fault = nil
		}
		if fault != nil {
			f.met++
		}
		f.mu.Unlock()
		if fault == nil {
			pass.ServeHTTP(w, r)
			return
		}
		fault(w, r, pass)
	}))
	_ = p.Listener.Close()
	p.Listener = f.gate
	p.Start()
	t.Cleanup(func() {
		f.gate.set(gateOpen)
		f.harm(nil, nil)
		p.CloseClientConnections()
		p.Close()
	})
	return f
}

func (f *faulty) addr() string { return f.gate.Addr().String() }

// harm makes fault answer the requests that wanted matches, or all requests if wanted is nil. A nil fault ends that.
func (f *faulty) harm(fault fault, wanted func(*http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault, f.wanted, f.met = fault, wanted, 0
}

// count returns the number of all requests and of those that met the fault.
func (f *faulty) count() (all, met int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.request, f.met
}

// noAnswer blocks until the client has gone. It reads the body because net/http detects that a client has gone only
// after that.
func noAnswer(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// foreign answers like a captive portal.
func foreign(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
	_, _ = io.WriteString(w, "<html>please log in</html>")
}

// reset breaks the connection in the middle of the answer.
func reset(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Consul-Index: 9\r\nX-Consul-Knownleader: true\r\nContent-Length: 1000\r\n\r\n[{")
	if tcp, ok := conn.(*gated).Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// after lets the server handle the request, and replaces its answer by that of another fault.
func after(instead fault) fault {
	return func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		pass.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithoutCancel(r.Context())))
		instead(w, r, pass)
	}
}

// gate is a listener that can be closed and reopened, and whose connections can fall silent.
type gate struct {
	t    *testing.T
	addr net.Addr

	mu      sync.Mutex
	state   int
	inner   net.Listener // nil while shut
	conns   map[*gated]bool
	changed chan struct{} // closed on every change of state
	ended   bool
}

const (
	gateOpen   = iota
	gateShut   // connections are refused, and existing ones are reset
	gateSilent // connections are accepted, but nothing is answered, nor on existing ones
)

func newGate(t *testing.T) *gate {
	t.Helper()
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", free[0]))
	if err != nil {
		t.Fatal(err)
	}
	return &gate{t: t, addr: l.Addr(), inner: l, conns: map[*gated]bool{}, changed: make(chan struct{})}
}

// set changes the state; the port stays the same.
func (g *gate) set(state int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended || g.state == state {
		return
	}
	switch {
	case state == gateShut:
		// A child process that is being forked has the socket until it runs its program, which may be after Close.
		syscall.ForkLock.RLock()
		_ = g.inner.Close()
		syscall.ForkLock.RUnlock()
		g.inner = nil
		for c := range g.conns {
			_ = c.Conn.(*net.TCPConn).SetLinger(0)
			_ = c.Conn.Close()
		}
	case g.state == gateShut:
		var err error
		if g.inner, err = net.Listen("tcp", g.addr.String()); err != nil {
			g.t.Errorf("open the gate again: %v", err)
		}
	}
	g.state = state
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *gate) Accept() (net.Conn, error) {
	for {
		g.mu.Lock()
		inner, changed, ended := g.inner, g.changed, g.ended
		g.mu.Unlock()
		if ended {
			return nil, net.ErrClosed
		}
		if inner == nil {
			<-changed
			continue
		}
		conn, err := inner.Accept()
		if err != nil {
			continue // shut, or ended
		}
		c := &gated{Conn: conn, gate: g, closed: make(chan struct{})}
		g.mu.Lock()
		g.conns[c] = true
		g.mu.Unlock()
		return c, nil
	}
}

func (g *gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return nil
	}
	g.ended = true
	close(g.changed)
	g.changed = make(chan struct{})
	if g.inner != nil {
		return g.inner.Close()
	}
	return nil
}

func (g *gate) Addr() net.Addr { return g.addr }

// gated is a connection through a gate.
type gated struct {
	net.Conn
	gate   *gate
	once   sync.Once
	closed chan struct{}
}

// pass blocks while the gate is silent.
func (c *gated) pass() {
	for {
		c.gate.mu.Lock()
		state, changed := c.gate.state, c.gate.changed
		c.gate.mu.Unlock()
		if state != gateSilent {
			return
		}
		select {
		case <-changed:
		case <-c.closed:
			return
		}
	}
}

func (c *gated) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.pass()
	return n, err
}

func (c *gated) Write(p []byte) (int, error) {
	c.pass()
	return c.Conn.Write(p)
}

func (c *gated) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.gate.mu.Lock()
		delete(c.gate.conns, c)
		c.gate.mu.Unlock()
	})
	return c.Conn.Close()
}
