package etcd

import (
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// link is a TCP proxy in front of a server.
type link struct {
	target   string // "127.0.0.1:40001"
	listener net.Listener
	lateness time.Duration
	release  chan struct{} // late bytes are passed on when it is closed, instead of after lateness; may be nil
	passed   chan struct{} // closed when late bytes have been passed on

	// halfOpen is locked while clients do not learn that the server has closed their connections.
	halfOpen sync.RWMutex

	mu     sync.Mutex
	conns  []net.Conn
	broken bool
	// onRequest is called with the bytes that a client sends, and returns what to do with them.
	onRequest func(data []byte) action
}

type action int

// In all cases but pass, the connections of all clients are closed, and no answer arrives.
const (
	pass action = iota
	drop        // does not pass the bytes on
	send        // passes the bytes on
	late        // passes the bytes on later
)

func newLink(t *testing.T, s *store) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{
		target:   strings.TrimPrefix(s.endpoints[0], "http://"),
		listener: listener,
		lateness: 500 * time.Millisecond,
		passed:   make(chan struct{}),
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { l.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		l.cut()
		running.Wait()
	})
	return l
}

// config makes a client use the link.
func (l *link) config(c *Config) { c.Endpoints = []string{"http://" + l.listener.Addr().String()} }

func (l *link) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer server.Close()
	l.mu.Lock()
	if l.broken {
		l.mu.Unlock()
		return
	}
	l.conns = append(l.conns, client, server)
	l.mu.Unlock()
	var copying sync.WaitGroup
	copying.Go(func() {
		_, _ = io.Copy(client, server)
		l.halfOpen.RLock()
		defer l.halfOpen.RUnlock()
		_ = client.Close()
	})
	defer copying.Wait()
	defer server.Close()
	buffer := make([]byte, 64<<10)
	for {
		size, err := client.Read(buffer)
		if err != nil {
			return
		}
		l.mu.Lock()
		f := l.onRequest
		l.mu.Unlock()
		what := pass
		if f != nil {
			what = f(buffer[:size])
		}
		if what != pass { // first, so that no answer can arrive
			l.forget(server)
			l.closeAll()
		}
		switch what {
		case pass, send:
		case drop:
			return
		case late:
			if l.release != nil {
				<-l.release
			} else {
				time.Sleep(l.lateness)
			}
		}
		if _, err := server.Write(buffer[:size]); err != nil {
			return
		}
		if what == late {
			close(l.passed)
		}
		if what != pass {
			time.Sleep(100 * time.Millisecond) // to make sure that it takes place
			return
		}
	}
}

// forget excludes a connection from closeAll.
func (l *link) forget(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = slices.DeleteFunc(l.conns, func(c net.Conn) bool { return c == conn })
}

func (l *link) closeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

// connections returns how many connections have been made and not been closed by the link.
func (l *link) connections() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns) / 2
}

// refuse closes new connections until mend is called.
func (l *link) refuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = true
}

// cut closes all connections and refuses others until mend is called.
func (l *link) cut() {
	l.refuse()
	l.closeAll()
}

func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = false
}

// do sets what is called with the bytes that clients send.
func (l *link) do(f func(data []byte) action) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onRequest = f
}
