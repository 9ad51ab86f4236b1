package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
)

// TestHealthOfANetwork: the report about a network covers that network and the agent, and no other network.
func TestHealthOfANetwork(t *testing.T) {
	a := onSocket(t)
	board := a.options.Health
	board.Set("m", health.Network, api.Critical, "waiting for the network to be defined")
	for _, name := range health.Names() {
		if name != health.Consul && name != health.Node {
			board.Set("n", name, api.Passing, "healthy")
		}
	}
	for _, tt := range []struct {
		query        string
		health, well int // of /healthz and /readyz
	}{
		{"", http.StatusServiceUnavailable, http.StatusServiceUnavailable},
		{"?network=n", http.StatusOK, http.StatusOK},
		{"?network=m", http.StatusServiceUnavailable, http.StatusServiceUnavailable},
		{"?network=m&network=n", http.StatusServiceUnavailable, http.StatusServiceUnavailable},
	} {
		agenttest.Eventually(t, func() error {
			health, body := a.request("GET", "/healthz"+tt.query, "")
			well, reasons := a.request("GET", "/readyz"+tt.query, "")
			if health != tt.health || well != tt.well {
				return fmt.Errorf("%q: %d and %d: %s", tt.query, health, well, body)
			}
			if named := strings.Contains(reasons, "waiting for the network to be defined"); named != (well != http.StatusOK) {
				return fmt.Errorf("%q: the reasons are %s", tt.query, reasons)
			}
			return nil
		})
	}
	for _, path := range []string{"/healthz?network=none", "/readyz?network=n&network=none", "/healthz?network="} {
		if code, body := a.request("GET", path, ""); code != http.StatusNotFound || !strings.Contains(body, "its networks: m, n") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	h, err := a.client.Health(context.Background(), "n")
	if err != nil || len(h.Networks) != 1 || h.Networks[0].Network != "n" || h.Status != api.Passing || len(h.Checks) == 0 {
		t.Errorf("%+v, %v", h, err)
	}
	var names []string
	for _, c := range h.Networks[0].Checks {
		names = append(names, c.Name)
	}
	if !slices.IsSortedFunc(names, func(a, b string) int {
		return slices.Index(health.Names(), a) - slices.Index(health.Names(), b)
	}) {
		t.Errorf("checks in the order %q", names)
	}
	for query, want := range map[string]string{
		"?format=text":           "m network: waiting for the network to be defined\n",
		"?format=text&network=n": "all checks are passing\n",
		"?format=xml":            `parameter format: \"xml\" is neither \"json\" nor \"text\"`,
	} {
		if _, body := a.request("GET", "/healthz"+query, ""); body != want && !(query == "?format=xml" && strings.Contains(body, want)) {
			t.Errorf("%s: %q", query, body)
		}
	}
	board.Set("", health.Consul, api.Warning, "no luck")
	if code, _ := a.request("GET", "/healthz?network=n", ""); code != http.StatusTooManyRequests {
		t.Errorf("the agent's own trouble: %d", code)
	}
}
