package httpapi

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/agenttest"
)

// TestUnsentBodies: clients that announce a body and do not send it, more of them
// than there may be connections, do not lock others out.
func TestUnsentBodies(t *testing.T) {
	t.Parallel()
	const most = 12
	h := serving(t, func(l *Limits) {
		l.Connections, l.Requests, l.Readers, l.BodyDrain = most, most-4, most-6, 200*time.Millisecond
	})
	const head = " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
	for _, tt := range []struct {
		name, request string
		status        int // of the answer to one who comes alone
	}{
		{"reads that wait", "GET /v1/networks?index=1" + head, 400},
		{"reads", "GET /v1/networks" + head, 400},
		{"chunked", "GET /v1/networks?index=1 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
		{"HEAD", "HEAD /v1/networks?index=1" + head, 400},
		{"announced with Expect", "GET /v1/networks?index=1 HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n", 400},
		{"the log", "GET /v1/agent/monitor" + head, 400},
		{"health", "GET /healthz" + head, 400},
		{"changes that read none", "PUT /v1/agent/reload" + head, 409},
		{"changes refused", "PUT /v1/agent/reload HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 100\r\n\r\n", 421},
		{"changes", "PUT /v1/network/m" + head + "{", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var all []net.Conn
			for range 3 * most {
				conn := h.dial()
				all = append(all, conn)
				if _, err := io.WriteString(conn, tt.request); err != nil {
					t.Fatal(err)
				}
			}
			begun := time.Now()
			h.well()
			if took := time.Since(begun); took > 10*h.options.Limits.BodyDrain {
				t.Errorf("health was answered after %s", took)
			}
			for _, conn := range all {
				_ = conn.Close()
			}
			if tt.status == 0 {
				return
			}
			var conn net.Conn
			agenttest.Eventually(t, func() error {
				conn = h.dial()
				if _, err := io.WriteString(conn, tt.request); err != nil {
					t.Fatal(err)
				}
				if err := conn.SetDeadline(time.Now().Add(10 * h.options.Limits.BodyDrain)); err != nil {
					t.Fatal(err)
				}
				begun = time.Now()
				r, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				_ = r.Body.Close()
				switch r.StatusCode {
				case tt.status:
					return nil
				case http.StatusServiceUnavailable: // it still answers those that have gone
					return fmt.Errorf("%+v", r)
				}
				t.Fatalf("%+v", r)
				return nil
			})
			ended(t, conn)
			if took := time.Since(begun); took > 10*h.options.Limits.BodyDrain {
				t.Errorf("the connection was closed after %s", took)
			}
		})
	}
}
