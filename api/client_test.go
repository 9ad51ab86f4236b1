package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var comparers = cmp.Options{
	cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}),
}

func TestParseAddress(t *testing.T) {
	tests := []struct {
		address string
		base    string
		socket  string
		err     string // part of it
		shown   string // part of the address in the error, if not all
	}{
		{address: "127.0.0.1:5366", base: "http://127.0.0.1:5366"},
		{address: "[::1]:5366", base: "http://[::1]:5366"},
		{address: "localhost:1", base: "http://localhost:1"},
		{address: "http://h:1/", base: "http://h:1"},
		{address: "https://h", base: "https://h"},
		{address: "https://h:1/behind/proxy/", base: "https://h:1/behind/proxy"},
		{address: "unix:///run/leno/leno.sock", base: "http://localhost", socket: "/run/leno/leno.sock"},
		{address: "unix://leno.sock", err: "not absolute"},
		{address: "unix://", err: "not absolute"},
		{address: "ftp://h:1", err: "unknown scheme ftp"},
		{address: "h", err: "port is missing"},
		{address: ":5366", err: "host is missing"},
		{address: "http://", err: "host is missing"},
		{address: "h:port", err: "not an address"},
		{address: "http://u:p@h:1", err: "more than", shown: "\"…@h:1\""},
		{address: "u:p@h:port", err: "not an address", shown: "\"…@h:port\""},
		{address: "http://h:1?x=y", err: "more than"},
	}
	for _, tt := range tests {
		t.Run(tt.address, func(t *testing.T) {
			base, socket, err := parseAddress(tt.address)
			if tt.err != "" {
				shown := tt.shown
				if shown == "" {
					shown = tt.address
				}
				if err == nil || !strings.Contains(err.Error(), tt.err) || !strings.Contains(err.Error(), shown) || strings.Contains(err.Error(), "u:p") {
					t.Fatalf("error %v, want one with %q and the address", err, tt.err)
				}
				if _, err := New(Config{Address: tt.address}); err == nil {
					t.Fatal("New accepted it")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if base.String() != tt.base || socket != tt.socket {
				t.Errorf("got %s and socket %q, want %s and %q", base, socket, tt.base, tt.socket)
			}
		})
	}
}

// request is a request as the handler received it.
type request struct {
	Line, Token, Body string
}

// serve responds to every request with one status and body, and returns the last request.
func serve(t *testing.T, status int, body string) (*Client, *request) {
	t.Helper()
	var got request
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in, _ := io.ReadAll(r.Body)
		got = request{Line: r.Method + " " + r.URL.RequestURI(), Token: r.Header.Get("X-Consul-Token"), Body: string(in)}
		w.Header().Set("X-Leno-Index", "42")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	t.Cleanup(srv.Close)
	c, err := New(Config{Address: srv.URL, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, &got
}

// TestRequests checks method, path, body and decoded response of every method.
func TestRequests(t *testing.T) {
	p4, p6 := netip.MustParsePrefix("10.5.34.0/24"), netip.MustParsePrefix("fd00:5:0:22::/64")
	tests := []struct {
		name   string
		status int
		answer string
		call   func(context.Context, *Client) (any, error)
		line   string
		body   string
		want   any
	}{
		{"health", 200, `{"status":"passing","ready":true,"checks":[],"networks":[]}`,
			func(ctx context.Context, c *Client) (any, error) { return c.Health(ctx) },
			"GET /healthz", "", Health{Status: Passing, Ready: true, Checks: []Check{}, Networks: []NetworkHealth{}}},
		{"health warning", 429, `{"status":"warning","ready":true}`,
			func(ctx context.Context, c *Client) (any, error) { return c.Health(ctx) },
			"GET /healthz", "", Health{Status: Warning, Ready: true}},
		{"health critical", 503, `{"status":"critical"}`,
			func(ctx context.Context, c *Client) (any, error) { return c.Health(ctx) },
			"GET /healthz", "", Health{Status: Critical}},
		{"not ready", 503, `{"status":"passing"}`,
			func(ctx context.Context, c *Client) (any, error) { return c.Ready(ctx) },
			"GET /readyz", "", Health{Status: Passing}},
		{"self", 200, `{"version":"1","node_name":"a","networks":["default"]}`,
			func(ctx context.Context, c *Client) (any, error) { return c.Self(ctx) },
			"GET /v1/agent/self", "", Self{Version: "1", NodeName: "a", Networks: []string{"default"}}},
		{"reload", 200, `{"changed":[{"field":"log_level","from":"\"INFO\"","to":"\"DEBUG\""}],"warnings":[]}`,
			func(ctx context.Context, c *Client) (any, error) { return c.Reload(ctx, false) },
			"PUT /v1/agent/reload", "", Reloaded{Changed: []Change{{"log_level", `"INFO"`, `"DEBUG"`}}, Warnings: []string{}}},
		{"networks", 200, `{"networks":[{"name":"default"}],"skipped":[]}`,
			func(ctx context.Context, c *Client) (any, error) { return c.Networks(ctx) },
			"GET /v1/networks", "", NetworkList{Networks: []Network{{Name: "default"}}, Skipped: []Skipped{}, Index: 42}},
		{"network", 200, `{"name":"a/b","modify_index":7}`,
			func(ctx context.Context, c *Client) (any, error) { return c.Network(ctx, "a/b") },
			"GET /v1/network/a%2Fb", "", Network{Name: "a/b", ModifyIndex: 7, Index: 42}},
		{"put network", 200, `{"name":"default","modify_index":8}`,
			func(ctx context.Context, c *Client) (any, error) {
				return c.PutNetwork(ctx, Network{Name: "default", Pools: []Pool{{Prefix: p4, SubnetLen: 26}},
					Backend: json.RawMessage(`{"type":"alloc"}`), ModifyIndex: 7, Local: &Local{State: "not sent"}}, false)
			},
			"PUT /v1/network/default",
			`{"name":"default","pools":[{"prefix":"10.5.34.0/24","subnet_len":26}],"backend":{"type":"alloc"},"modify_index":7}`,
			Network{Name: "default", ModifyIndex: 8}},
		{"put network by force", 200, `{"name":"default"}`,
			func(ctx context.Context, c *Client) (any, error) {
				return c.PutNetwork(ctx, Network{Name: "default", Pools: []Pool{{Prefix: p4}}, Backend: json.RawMessage(`{"type":"alloc"}`)}, true)
			},
			"PUT /v1/network/default?force=true",
			`{"name":"default","pools":[{"prefix":"10.5.34.0/24"}],"backend":{"type":"alloc"},"modify_index":0}`,
			Network{Name: "default"}},
		{"plan network", 200, `{"name":"default","action":"update","hosts":[{"node":"a","subnet":"10.5.34.0/24","what":["keeps it"]}],"refused":[{"reason":"r","way":"w","force":true}]}`,
			func(ctx context.Context, c *Client) (any, error) {
				return c.PlanNetwork(ctx, Network{Name: "default", Pools: []Pool{{Prefix: p4}}, Backend: json.RawMessage(`{"type":"alloc"}`), ModifyIndex: 7})
			},
			"POST /v1/network/default/plan",
			`{"name":"default","pools":[{"prefix":"10.5.34.0/24"}],"backend":{"type":"alloc"},"modify_index":0}`,
			NetworkPlan{Name: "default", Action: ActionUpdate, Hosts: []HostChange{{Node: "a", Subnet: p4, What: []string{"keeps it"}}},
				Refused: []Refusal{{"r", "w", true}}}},
		{"delete network", 200, `{}`,
			func(ctx context.Context, c *Client) (any, error) { return nil, c.DeleteNetwork(ctx, "default", false) },
			"DELETE /v1/network/default", "", nil},
		{"delete network by force", 200, `{}`,
			func(ctx context.Context, c *Client) (any, error) { return nil, c.DeleteNetwork(ctx, "default", true) },
			"DELETE /v1/network/default?force=true", "", nil},
		{"leases", 200, `{"leases":[{"subnet":"10.5.34.0/24","held":true}],"skipped":[{"key":"k","reason":"r"}]}`,
			func(ctx context.Context, c *Client) (any, error) { return c.Leases(ctx, "default") },
			"GET /v1/network/default/leases", "",
			LeaseList{Leases: []Lease{{Subnet: p4, Held: true}}, Skipped: []Skipped{{"k", "r"}}, Index: 42}},
		{"lease", 200, `{"subnet":"fd00:5:0:22::/64"}`,
			func(ctx context.Context, c *Client) (any, error) { return c.Lease(ctx, "default", p6) },
			"GET /v1/network/default/lease/fd00:5:0:22::-64", "", Lease{Subnet: p6}},
		{"revoke", 200, `{}`,
			func(ctx context.Context, c *Client) (any, error) { return nil, c.RevokeLease(ctx, "default", p4) },
			"DELETE /v1/network/default/lease/10.5.34.0-24", "", nil},
		{"renew", 200, `{"subnet":"10.5.34.0/24","renewed":"2026-01-02T15:04:05Z","safe_until":"2026-01-02T15:06:05Z"}`,
			func(ctx context.Context, c *Client) (any, error) { return c.RenewLease(ctx, "default") },
			"PUT /v1/network/default/renew", "", Renewal{Subnet: p4, Renewed: time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC), SafeUntil: time.Date(2026, 1, 2, 15, 6, 5, 0, time.UTC)}},
		{"release", 204, ``,
			func(ctx context.Context, c *Client) (any, error) { return nil, c.ReleaseLease(ctx, "default") },
			"PUT /v1/network/default/release", "", nil},
		{"reservations", 200, `{"reservations":[{"subnet":"10.5.34.0/24","node":"b"}],"skipped":[]}`,
			func(ctx context.Context, c *Client) (any, error) { return c.Reservations(ctx, "default") },
			"GET /v1/network/default/reservations", "",
			ReservationList{Reservations: []Reservation{{Subnet: p4, Node: "b"}}, Skipped: []Skipped{}, Index: 42}},
		{"reserve", 200, `{}`,
			func(ctx context.Context, c *Client) (any, error) {
				return nil, c.AddReservation(ctx, "default", Reservation{Subnet: p4, Node: "b"}, false)
			},
			"PUT /v1/network/default/reservation/10.5.34.0-24", `{"subnet":"10.5.34.0/24","node":"b"}`, nil},
		{"reserve by force", 200, `{}`,
			func(ctx context.Context, c *Client) (any, error) {
				return nil, c.AddReservation(ctx, "default", Reservation{Subnet: p4, NodeID: "6f1c"}, true)
			},
			"PUT /v1/network/default/reservation/10.5.34.0-24?force=true", `{"subnet":"10.5.34.0/24","node_id":"6f1c"}`, nil},
		{"unreserve", 200, `{}`,
			func(ctx context.Context, c *Client) (any, error) { return nil, c.RemoveReservation(ctx, "default", p4) },
			"DELETE /v1/network/default/reservation/10.5.34.0-24", "", nil},
		{"peers", 200, `{"peers":[{"node":"b","counters":{"rx_packets":3}}]}`,
			func(ctx context.Context, c *Client) (any, error) { return c.Peers(ctx, "default") },
			"GET /v1/network/default/peers", "",
			PeerList{Peers: []Peer{{Node: "b", Counters: &Counters{RxPackets: 3}}}, Index: 42}},
		{"probe", 200, `{"network":"default","peers":[{"node":"b","held":true,"reached":false,"ways":[{"path":"underlay","to":"192.0.2.1","mtu":1500,"largest":1400}],"to_peer":{"state":"lost"}}]}`,
			func(ctx context.Context, c *Client) (any, error) {
				return c.ProbePeers(ctx, "default", ProbeRequest{Peers: []string{"b"}, Count: 5})
			},
			"POST /v1/network/default/probe", `{"peers":["b"],"count":5}`,
			Probe{Network: "default", Peers: []PeerProbe{{Node: "b", Held: true, ToPeer: &ProbedDirection{State: DirectionLost},
				Ways: []ProbedWay{{Path: PathUnderlay, To: netip.MustParseAddr("192.0.2.1"), MTU: 1500, Largest: 1400}}}}}},
		{"events", 200, `{"events":[{"index":7,"kind":"peer","severity":"info","message":"b appeared","fields":{"host":"b"}}]}`,
			func(ctx context.Context, c *Client) (any, error) { return c.Events(ctx, "") },
			"GET /v1/agent/events", "",
			EventList{Events: []Event{{Index: 7, Kind: EventPeer, Severity: Info, Message: "b appeared", Fields: map[string]string{"host": "b"}}}, Index: 42}},
		{"events of a network", 200, `{"events":[]}`,
			func(ctx context.Context, c *Client) (any, error) { return c.Events(ctx, "a&b", Read{Index: 7}) },
			"GET /v1/agent/events?index=7&network=a%26b", "", EventList{Events: []Event{}, Index: 42}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, got := serve(t, tt.status, tt.answer)
			answer, err := tt.call(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			want := request{Line: tt.line, Body: tt.body}
			if method, path, _ := strings.Cut(tt.line, " "); strings.HasPrefix(path, "/v1/network/") && (method == "PUT" || method == "DELETE") {
				want.Token = "secret"
			}
			if diff := cmp.Diff(want, *got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, answer, comparers); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	tests := []struct {
		name   string
		status int
		body   string
		code   int // 0: not an *Error
		text   string
	}{
		{"the agent's", 404, `{"code":404,"error":"network \"x\" is not defined, there is: default"}`, 404, `network "x" is not defined, there is: default`},
		{"status wins over the body", 409, `{"code":200,"error":"changed in the meantime"}`, 409, "changed in the meantime"},
		{"a proxy's page", 502, "<html>bad gateway</html>\n", 502, "unexpected answer: 502 Bad Gateway: <html>bad gateway</html>"},
		{"a long page is cut", 500, strings.Repeat("é", 500), 500, "unexpected answer: 500 Internal Server Error: " + strings.Repeat("é", 100) + "…"},
		{"nothing", 500, "", 500, "unexpected answer: 500 Internal Server Error"},
		{"a redirect is not followed", 307, "", 307, "unexpected answer: 307 Temporary Redirect"},
		{"not JSON", 200, "hello", 0, "GET /v1/networks: status 200: not the agent's answer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, _ := serve(t, tt.status, tt.body)
			_, err := c.Networks(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), tt.text) {
				t.Fatalf("error %v, want %q", err, tt.text)
			}
			var typed *Error
			if is := errors.As(err, &typed); is != (tt.code != 0) {
				t.Fatalf("error is %T", err)
			}
			if tt.code != 0 && typed.Code != tt.code {
				t.Errorf("code %d, want %d", typed.Code, tt.code)
			}
		})
	}
}

// TestHealthIsNotAProxysPage checks that a response without a health status is not taken for the
// agent's.
func TestHealthIsNotAProxysPage(t *testing.T) {
	c, _ := serve(t, 503, "<html>no backend</html>")
	if h, err := c.Health(t.Context()); err == nil {
		t.Fatalf("got %+v, want an error", h)
	}
	c, _ = serve(t, 503, `{"message":"no backend"}`)
	if h, err := c.Health(t.Context()); err == nil {
		t.Fatalf("got %+v, want an error", h)
	}
}

// TestReadToken: the token is read for requests that change the store. If it cannot be read, they are not made.
func TestReadToken(t *testing.T) {
	var lines []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lines = append(lines, r.Method+" "+r.Header.Get("X-Consul-Token"))
		io.WriteString(w, "{}")
	}))
	defer srv.Close()
	unreadable := errors.New("unreadable")
	for _, tt := range []struct {
		err  error
		want []string
	}{{nil, []string{"GET ", "PUT ", "DELETE read"}}, {unreadable, []string{"GET ", "PUT "}}} {
		lines = nil
		c, err := New(Config{Address: srv.URL, Token: "other", ReadToken: func() (string, error) { return "read", tt.err }})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Self(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := c.Doctor(t.Context(), DoctorOptions{}); err != nil {
			t.Error(err)
		}
		if err := c.DeleteNetwork(t.Context(), "a", false); !errors.Is(err, tt.err) || !slices.Equal(lines, tt.want) {
			t.Errorf("%v, requests %q, want %v and %q", err, lines, tt.err, tt.want)
		}
		c.Close()
	}
}

func TestRedirectDoesNotCarryTheToken(t *testing.T) {
	reached := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer other.Close()
	srv := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer srv.Close()
	c, err := New(Config{Address: srv.URL, Token: "secret", HTTPClient: srv.Client()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.RenewLease(t.Context(), "a"); err == nil || reached {
		t.Errorf("error %v, reached the other server: %t", err, reached)
	}
}

func TestUnixSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "leno.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"node_name":"a"}`)
	}))
	srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	defer srv.Close()
	c, err := New(Config{Address: "unix://" + socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	self, err := c.Self(t.Context())
	if err != nil || self.NodeName != "a" {
		t.Errorf("got %+v, %v", self, err)
	}
}

func TestTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"node_name":"a"}`)
	}))
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
	c, err := New(Config{Address: srv.URL, TLS: &tls.Config{RootCAs: roots}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Self(t.Context()); err != nil {
		t.Error(err)
	}
	untrusting, err := New(Config{Address: srv.URL, TLS: &tls.Config{RootCAs: x509.NewCertPool()}})
	if err != nil {
		t.Fatal(err)
	}
	defer untrusting.Close()
	if _, err := untrusting.Self(t.Context()); err == nil {
		t.Error("an unknown certificate was accepted")
	}
}

func TestContextEndsACall(t *testing.T) {
	started := make(chan struct{})
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(started)
		<-release
	}))
	defer srv.Close()
	defer close(release)
	c, err := New(Config{Address: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-started; cancel() }()
	if _, err := c.Self(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

// TestReadsAnswerInTime checks that a blocking read asks for no longer than its caller has.
func TestReadsAnswerInTime(t *testing.T) {
	for _, tt := range []struct {
		name        string
		read        Read
		context     time.Duration // 0 for no limit
		client      time.Duration // likewise
		passed      time.Duration // since the context began
		least, most time.Duration // 0 for no parameter
	}{
		{"no end", Read{Index: 1}, 0, 0, 0, 0, 0},
		{"no end, given", Read{Index: 1, Wait: time.Hour}, 0, 0, 0, time.Hour, time.Hour},
		{"context ends sooner", Read{Index: 1}, time.Minute, 0, 0, 50 * time.Second, 54 * time.Second},
		{"context ends later", Read{Index: 1, Wait: time.Second}, time.Minute, 0, 0, time.Second, time.Second},
		{"client ends sooner", Read{Index: 1, Wait: time.Minute}, time.Minute, 10 * time.Second, 0, 9 * time.Second, 9 * time.Second},
		{"context ends sooner than the client", Read{Index: 1}, 10 * time.Second, time.Minute, 0, 8 * time.Second, 9 * time.Second},
		{"some of it has passed", Read{Index: 1}, time.Minute, time.Minute, 50 * time.Second, 8 * time.Second, 9 * time.Second},
		{"does not wait", Read{}, time.Minute, 0, 0, 0, 0},
		{"over", Read{Index: 1}, time.Nanosecond, 0, time.Second, time.Millisecond, time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // no time passes between the start of the context and the question
				c, err := New(Config{HTTPClient: &http.Client{Timeout: tt.client}})
				if err != nil {
					t.Fatal(err)
				}
				ctx := t.Context()
				if tt.context > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.context)
					defer cancel()
				}
				time.Sleep(tt.passed)
				u, err := url.Parse(c.query(ctx, []Read{tt.read}))
				if err != nil {
					t.Fatal(err)
				}
				got, err := time.ParseDuration(durationOr0(u.Query().Get("wait")))
				if err != nil || got < tt.least || got > tt.most {
					t.Errorf("%s: %s, %v", u, got, err)
				}
			})
		})
	}
}

// durationOr0 parses a duration that may be absent.
func durationOr0(wait string) string {
	if wait == "" {
		return "0s"
	}
	return wait
}
