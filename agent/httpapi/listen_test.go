package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
)

// ended waits until the server has closed a connection.
func ended(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, conn)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("the agent keeps the connection")
	}
}

// TestRequestsOfAllKinds sends raw requests, as any client may.
func TestRequestsOfAllKinds(t *testing.T) {
	h := serving(t, nil)
	const local = "Host: localhost\r\nConnection: close\r\n"
	for _, tt := range []struct {
		name, request string
		status        int
		says          string
		header        string // "Name: value" of the answer
	}{
		{"plain", "GET /v1/networks HTTP/1.1\r\n" + local + "\r\n", 200, `"networks"`, "Cache-Control: no-store"},
		{"request id", "GET /v1/networks HTTP/1.1\r\n" + local + "X-Request-Id: abc-1\r\n\r\n", 200, "", "X-Request-Id: abc-1"},
		{"head", "HEAD /v1/networks HTTP/1.1\r\n" + local + "\r\n", 200, "", "Content-Type: application/json"},
		{"another method", "PATCH /v1/network/n HTTP/1.1\r\n" + local + "\r\n", 405, "takes DELETE, GET, HEAD, PUT, not PATCH", "Allow: DELETE, GET, HEAD, PUT"},
		{"an unknown method", "BREW /healthz HTTP/1.1\r\n" + local + "\r\n", 405, "BREW", "Allow: GET, HEAD"},
		{"nearly an endpoint", "GET /v1/network/n/lease HTTP/1.1\r\n" + local + "\r\n", 404, "the nearest is GET /v1/network/{network}/leases", ""},
		{"no endpoint at all", "GET /some/where/else/altogether HTTP/1.1\r\n" + local + "\r\n", 404, "no such endpoint", ""},
		{"long path", "GET /" + strings.Repeat("x", 60_000) + " HTTP/1.1\r\n" + local + "\r\n", 404, "…", ""},
		{"unknown network", "GET /v1/network/m HTTP/1.1\r\n" + local + "\r\n", 404, "known are n", ""},
		{"unknown lease", "GET /v1/network/n/lease/10.5.99.0-24 HTTP/1.1\r\n" + local + "\r\n", 404, "known are 10.5.", ""},
		{"unknown reservation", "DELETE /v1/network/n/reservation/10.5.99.0-24 HTTP/1.1\r\n" + local + "\r\n", 404, "none is known", ""},
		{"bad flag", "DELETE /v1/network/n?force=yes HTTP/1.1\r\n" + local + "\r\n", 400, "parameter force", ""},
		{"a flag without a value", "PUT /v1/agent/doctor?passive HTTP/1.1\r\n" + local + "\r\n", 400, "parameter passive", ""},
		{"an empty flag", "DELETE /v1/network/n?force= HTTP/1.1\r\n" + local + "\r\n", 400, "parameter force", ""},
		{"bad memory", "GET /v1/network/n/leases?memory=1 HTTP/1.1\r\n" + local + "\r\n", 400, "parameter memory", ""},
		{"bad query", "GET /v1/networks?index=%zz HTTP/1.1\r\n" + local + "\r\n", 400, "query", ""},
		{"huge body", "PUT /v1/network/m HTTP/1.1\r\n" + local + "Content-Length: 2000000\r\n\r\n{\"name\":\"" + strings.Repeat("m", 1_999_000), 413, "larger than 1048576 bytes", ""},
		{"huge chunked body", "PUT /v1/network/m HTTP/1.1\r\n" + local + "Transfer-Encoding: chunked\r\n\r\n" + "200000\r\n{\"name\":\"" + strings.Repeat("m", 0x200000-9), 413, "larger than", ""},
		{"empty body", "PUT /v1/network/m HTTP/1.1\r\n" + local + "Content-Length: 0\r\n\r\n", 400, "it is empty", ""},
		{"two bodies", "PUT /v1/network/m HTTP/1.1\r\n" + local + "Content-Length: 5\r\n\r\n{} {}", 400, "more text follows", ""},
		{"page of another site", "DELETE /v1/network/n HTTP/1.1\r\n" + local + "Origin: http://evil.example\r\n\r\n", 403, "another site", ""},
		{"page of another site, said by the browser", "PUT /v1/agent/reload HTTP/1.1\r\n" + local + "Sec-Fetch-Site: cross-site\r\n\r\n", 403, "another site", ""},
		{"own page", "PUT /v1/agent/reload HTTP/1.1\r\n" + local + "Sec-Fetch-Site: same-origin\r\n\r\n", 409, "cannot read its configuration", ""},
		{"rebound name", "GET /v1/networks HTTP/1.1\r\nHost: evil.example:5366\r\nConnection: close\r\n\r\n", 421, `\"evil.example:5366\"`, ""},
		{"by address", "GET /v1/networks HTTP/1.1\r\nHost: [::1]:5366\r\nConnection: close\r\n\r\n", 200, "", ""},
		{"by this host's name", "GET /v1/networks HTTP/1.1\r\nHost: A:5366\r\nConnection: close\r\n\r\n", 200, "", ""},
		{"without a name", "GET /v1/networks HTTP/1.0\r\n\r\n", 200, "", ""},
		{"gzip", "GET /v1/openapi.yaml HTTP/1.1\r\n" + local + "Accept-Encoding: gzip\r\n\r\n", 200, "\x1f\x8b", "Content-Encoding: gzip"},
		{"small answers are left alone", "GET /v1/network/n/peers HTTP/1.1\r\n" + local + "Accept-Encoding: gzip\r\n\r\n", 200, "{", "Content-Encoding: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, body := h.answers(tt.request)
			name, value, _ := strings.Cut(tt.header, ": ")
			if r.StatusCode != tt.status || !strings.Contains(body, tt.says) || r.Header.Get(name) != value && name != "" {
				t.Errorf("%d %.300s %v", r.StatusCode, body, r.Header)
			}
			var refused api.Error
			if tt.status >= 400 && (json.Unmarshal([]byte(body), &refused) != nil || refused.Code != tt.status || len(refused.Message) > 1000) {
				t.Errorf("not an error's body: %.300s", body)
			}
			if r.Header.Get("X-Request-Id") == "" {
				t.Error("no request id")
			}
		})
	}
	if lines := h.said.With("request_id=abc-1", "path=/v1/networks", "status=200"); len(lines) != 1 {
		t.Errorf("the log has %q", lines)
	}
	for _, id := range []string{strings.Repeat("x", 65), "a\tb", "<x>"} {
		r, _ := h.answers("GET /healthz HTTP/1.1\r\n" + local + "X-Request-Id: " + id + "\r\n\r\n")
		if got := r.Header.Get("X-Request-Id"); len(got) != 16 || got == id {
			t.Errorf("id %q was taken over as %q", id, got)
		}
	}
	// What Go's server refuses by itself has no JSON.
	for name, tt := range map[string]struct {
		request string
		status  int
	}{
		"huge header": {"GET /healthz HTTP/1.1\r\n" + local + "X: " + strings.Repeat("x", 100_000) + "\r\n\r\n", 431},
		"no HTTP":     {"HELLO\r\n\r\n", 400},
		"two hosts":   {"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
	} {
		if r, body := h.answers(tt.request); r.StatusCode != tt.status {
			t.Errorf("%s: %d %s", name, r.StatusCode, body)
		}
	}
	h.well()
}

// pipes is a listener for connections within a synctest bubble, which sets the time of their deadlines.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5366} }

// dial returns a connection on which text was sent, and which lasts a minute at most.
func (p pipes) dial(t *testing.T, text string) net.Conn {
	t.Helper()
	server, client := net.Pipe()
	p <- server
	if err := client.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(client, text); err != nil {
		t.Fatal(err)
	}
	return client
}

// TestSlowClients: a client that sends or reads slowly is disconnected, and one that waits for a change is not.
func TestSlowClients(t *testing.T) {
	const patience = 5 * time.Second
	synctest.Test(t, func(t *testing.T) {
		server := newHost(t, func(l *Limits) { l.HeaderTime, l.RequestTime = patience, patience }).prepare()
		ctx, end := context.WithCancel(t.Context())
		served, clients := make(chan error), make(pipes)
		go func() { served <- server.Serve(ctx, clients) }()
		defer func() {
			end()
			if err := <-served; err != nil {
				t.Error(err)
			}
		}()
		answer := func(conn net.Conn) *http.Response {
			t.Helper()
			r, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Error(err)
			}
			return r
		}
		const rest = " HTTP/1.1\r\nHost: localhost\r\n"

		conn := clients.dial(t, "GET /v1/network/n/leases"+rest+"Connection: close\r\n\r\n")
		index := answer(conn).Header.Get("X-Leno-Index")
		begun := time.Now()
		conn = clients.dial(t, fmt.Sprintf("GET /v1/network/n/leases?index=%s&wait=%s%s\r\n", index, 4*patience, rest))
		if r := answer(conn); r.StatusCode != http.StatusOK || time.Since(begun) < 4*patience {
			t.Errorf("a client that waits is answered after %s: %+v", time.Since(begun), r)
		}
		for name, sent := range map[string]string{
			"nothing":                "",
			"half a header":          "GET /healthz HTTP/1.1\r\nHost: loc",
			"half a body":            "PUT /v1/network/m" + rest + "Content-Length: 100\r\n\r\n{\"na",
			"half a body of a probe": "POST /v1/network/n/probe" + rest + "Content-Length: 100\r\n\r\n{\"pe",
		} {
			begun = time.Now()
			conn := clients.dial(t, sent)
			if strings.HasPrefix(name, "half a body") {
				if r := answer(conn); r.StatusCode != http.StatusRequestTimeout {
					t.Errorf("%s: %+v", name, r)
				}
			}
			_, _ = io.Copy(io.Discard, conn)
			if took := time.Since(begun); took < patience || took > 2*patience {
				t.Errorf("%s: the connection was closed after %s", name, took)
			}
		}

		begun = time.Now()
		conn = clients.dial(t, "")
		for range 1000 { // until the agent reads no more
			if _, err := io.WriteString(conn, "GET /v1/openapi.yaml"+rest+"\r\n"); err != nil {
				break
			}
		}
		if took := time.Since(begun); took == 0 || took > 3*patience {
			t.Errorf("a client that reads nothing is kept for %s", took)
		}
	})
}

// TestManyConnections: connections below the limit that send nothing, or half a request, do not lock others out. Beyond
// it, others are answered when these have run out of time, and those that are idle do not last either.
func TestManyConnections(t *testing.T) {
	const many, patience = 100, time.Second
	h := serving(t, func(l *Limits) { l.Connections, l.HeaderTime, l.Idle = many, patience, patience })
	for i := range many - 1 {
		conn := h.dial()
		text := []string{"", "GET /healthz HTTP/1.1\r\nHo", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"}[i%3]
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
	}
	h.well()
	for range many {
		h.dial()
	}
	begun := time.Now()
	h.well()
	if took := time.Since(begun); took > 10*patience {
		t.Errorf("health was answered after %s", took)
	}
}

// TestTooManyRequests: requests beyond the limits get a reason, and health still answers.
func TestTooManyRequests(t *testing.T) {
	h := serving(t, func(l *Limits) { l.Requests, l.Readers = 3, 2 })
	list, err := h.client.Leases(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	wait := func(ctx context.Context) error {
		_, err := h.client.Leases(ctx, "n", api.Read{Index: list.Index, Wait: time.Minute})
		return err
	}
	ctx, leave := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer leave()
	for range 2 {
		readers.Go(func() { _ = wait(ctx) })
	}
	h.readers(2)
	agenttest.WantCode(t, "a reader too many", wait(t.Context()), http.StatusTooManyRequests, "2 reads already wait")
	// A request counts until a moment after its answer has come, so the next one may be refused at first.
	agenttest.Eventually(t, func() error {
		if _, err := h.client.Leases(t.Context(), "n"); err != nil {
			return fmt.Errorf("a read that does not wait: %w", err)
		}
		return nil
	})

	agenttest.Eventually(t, func() error {
		slow := h.dial()
		if _, err := io.WriteString(slow, "PUT /v1/network/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		_, err := h.client.Leases(t.Context(), "n")
		var refused *api.Error
		if !errors.As(err, &refused) || refused.Code != http.StatusServiceUnavailable || !strings.Contains(refused.Message, "3 requests are in progress") {
			return fmt.Errorf("a request too many: %v", err)
		}
		return nil
	})
	h.well()
}

// TestPanic: a fault in a handler ends only its own request.
func TestPanic(t *testing.T) {
	h := serving(t, nil)
	broken := h.server.withRequestLog(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/late" {
			_, _ = w.Write([]byte("half"))
		}
		panic("seeded")
	}))
	server := &http.Server{Handler: broken, ErrorLog: h.server.log.StandardLogger(nil)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(l) })
	defer served.Wait()
	defer server.Close()
	r, err := http.Get("http://" + l.Addr().String() + "/early")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if id := r.Header.Get("X-Request-Id"); r.StatusCode != 500 || !strings.Contains(string(body), id) || len(h.said.With("seeded", "request_id="+id)) != 1 {
		t.Errorf("%d %s", r.StatusCode, body)
	}
	if r, err := http.Get("http://" + l.Addr().String() + "/late"); err == nil {
		if _, err = io.ReadAll(r.Body); err == nil {
			t.Error("half an answer looks whole")
		}
		_ = r.Body.Close()
	}
}

// TestSocket covers the mode of the socket, a file left behind, and another agent on it.
func TestSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "run", "leno.sock")
	address := "unix://" + path
	l, err := listen(address)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != socketMode {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := listen(address); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second agent: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // as one that is killed
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = listen(address); err != nil {
		t.Fatalf("over a socket left behind: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen("unix://" + file); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("over a file: %v", err)
	}
}

// TestSocketBesideAddress: the API is served at both, a socket that another agent serves is left to it until it ends, and the
// server removes its own.
func TestSocketBesideAddress(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "leno.sock")
	local, err := api.New(api.Config{Address: "unix://" + path})
	must(t, err)
	first, second := newHost(t, nil), newHost(t, nil)
	for name, h := range map[string]*host{"first": first, "second": second} {
		h.options.Socket, h.agent.self.NodeName = path, name
	}
	answers := func(want string) {
		t.Helper()
		agenttest.Eventually(t, func() error {
			defer local.Close() // the next request connects again
			if self, err := local.Self(t.Context()); err != nil || self.NodeName != want {
				return fmt.Errorf("%q, %v; want %s", self.NodeName, err, want)
			}
			return nil
		})
	}
	first.serve("127.0.0.1:0")
	answers("first")
	second.serve("127.0.0.1:0")
	second.well()
	answers("first")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != socketMode {
		t.Errorf("%v, %v", info, err)
	}
	must(t, first.stop())
	answers("second")
	must(t, second.stop())
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}
}

// TestServerLeavesNothing: a server that had readers, half requests and idle connections leaves no goroutine.
func TestServerLeavesNothing(t *testing.T) {
	before := goleak.IgnoreCurrent()
	h := serving(t, nil)
	list, err := h.client.Networks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	for range 20 {
		readers.Go(func() { _, _ = h.client.Networks(t.Context(), api.Read{Index: list.Index}) })
	}
	h.readers(20)
	idle, half := h.dial(), h.dial()
	if _, err := io.WriteString(half, "GET /hea"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := h.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 2*ShutdownTimeout { // it waits for the half request
		t.Errorf("stopping took %s", took)
	}
	readers.Wait()
	h.client.Close()
	_, _ = idle.Close(), half.Close()
	goleak.VerifyNone(t, before)
}

// TestConnectionsAtTheLimit: reaching the limit is logged once a minute, and connections without a request are closed.
func TestConnectionsAtTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		c := &connections{log: hclog.New(&hclog.LoggerOptions{Output: &text}), limit: 2, unused: map[net.Conn]bool{}}
		logged := func() int { return strings.Count(text.String(), "too many connections") }
		var ends []net.Conn
		for i := range 4 {
			conn, end := net.Pipe()
			ends = append(ends, end)
			c.observe(conn, http.StateNew)
			if i == 3 {
				c.observe(conn, http.StateActive)
				defer conn.Close()
			}
			if want := min(i, 1); logged() != want {
				t.Errorf("%d connections: logged %d times, want %d", i+1, logged(), want)
			}
		}
		time.Sleep(time.Minute + time.Second)
		conn, _ := net.Pipe()
		defer conn.Close()
		c.observe(conn, http.StateNew)
		if logged() != 2 {
			t.Errorf("after a minute: logged %d times", logged())
		}
		c.closeUnused()
		for i, end := range ends {
			_ = end.SetReadDeadline(time.Now().Add(time.Second))
			_, err := end.Read(make([]byte, 1))
			if isClosed := errors.Is(err, io.EOF); isClosed != (i < 3) {
				t.Errorf("connection %d: %v", i, err)
			}
		}
	})
}
