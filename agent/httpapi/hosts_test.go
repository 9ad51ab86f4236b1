package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/lenonet/leno/internal/testkit/agenttest"
)

// TestForeignHosts: whatever address the API listens on, a request has to be for a name of this host. Otherwise a page
// whose name was pointed at this host could delete a network.
func TestForeignHosts(t *testing.T) {
	own, err := os.Hostname()
	must(t, err)
	h := newHost(t, nil)
	h.agent.self.NodeName = "web1"
	h.agent.config.HTTP.AllowedHosts = []string{"Leno.example.com", "*.internal"}
	h.options.LookupName = func(_ context.Context, name string) (string, []netip.Addr, error) {
		switch name {
		case "web1":
			return "Web1.example.org.", []netip.Addr{netip.MustParseAddr("192.0.2.99"), netip.MustParseAddr("127.0.1.1")}, nil
		case strings.ToLower(own):
			return "stale.example.org.", []netip.Addr{netip.MustParseAddr("192.0.2.99")}, nil
		}
		return "", nil, errors.New("no answer")
	}
	h.serve("0.0.0.0:0")
	asks := func(host string) (int, string) {
		r, body := h.answers("DELETE /v1/network/none HTTP/1.1\r\nHost: " + host + "\r\nOrigin: http://" + host + "\r\nConnection: close\r\n\r\n")
		return r.StatusCode, body
	}
	agenttest.Eventually(t, func() error {
		if code, body := asks("web1.example.org:5366"); code == http.StatusMisdirectedRequest {
			return fmt.Errorf("by the full name: %d %s", code, body)
		}
		return nil
	})
	for _, tt := range []struct {
		host   string
		passes bool
	}{
		{"127.0.0.1:5366", true}, {"192.0.2.7", true}, {"[2001:db8::1]:5366", true}, {"localhost", true}, {"LOCALHOST.:5366", true}, {"x.localhost", true},
		{own, true}, {"WEB1", true}, {"web1.example.org", true},
		{"leno.example.com:443", true}, {"a.internal", true}, {"a.b.Internal.", true},
		{"evil.example", false}, {"evil.example:5366", false}, {"web1.evil.example", false}, {"127.0.0.1.evil.example", false}, {"stale.example.org", false},
		{"internal", false}, {".internal", false}, {"evilinternal", false}, {"leno.example.com.evil.example", false}, {"x.leno.example.com", false}, {"a:b:c", false},
	} {
		if code, body := asks(tt.host); (code != http.StatusMisdirectedRequest) != tt.passes || !tt.passes && !strings.Contains(body, "http.allowed_hosts") {
			t.Errorf("%s: %d %s", tt.host, code, body)
		}
	}
	// A reload may replace the list.
	h.agent.mu.Lock()
	h.agent.config.HTTP.AllowedHosts = []string{"evil.example"}
	h.agent.mu.Unlock()
	for host, passes := range map[string]bool{"evil.example": true, "leno.example.com": false} {
		if code, body := asks(host); (code != http.StatusMisdirectedRequest) != passes {
			t.Errorf("%s after a reload: %d %s", host, code, body)
		}
	}
}

// TestHostsOnOtherListeners: no name matters on a socket, and with TLS.
func TestHostsOnOtherListeners(t *testing.T) {
	h := onSocket(t)
	r, body := h.answers("GET /v1/networks HTTP/1.1\r\nHost: leno\r\nConnection: close\r\n\r\n")
	if r.StatusCode != http.StatusOK {
		t.Errorf("on a socket: %d %s", r.StatusCode, body)
	}
	h.server.names.Learn(t.Context(), &net.UnixAddr{Name: "/run/leno.sock"}, false)
	h.server.names.Learn(t.Context(), &net.TCPAddr{IP: net.IPv4zero}, true)
}
