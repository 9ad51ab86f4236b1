package api_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
)

// TestErrorsWithoutTheToken checks that errors do not contain the token: a proxy in front of the
// agent may repeat a request's header, and errors are printed, and stored by `leno debug`.
func TestErrorsWithoutTheToken(t *testing.T) {
	const token = "7f1b5c0e-secret-of-the-caller"
	for name, page := range map[string]func(sent string) string{
		"text":            func(sent string) string { return "denied for " + sent },
		"JSON":            func(sent string) string { return `{"code":502,"error":"denied for ` + sent + `"}` },
		"JSON, escaped":   func(sent string) string { return `{"code":502,"error":"\u0037` + sent[1:] + `"}` },
		"where it is cut": func(sent string) string { return strings.Repeat("x", 190) + sent },
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusBadGateway)
				_, _ = io.WriteString(w, page(r.Header.Get("X-Consul-Token")))
			}))
			defer server.Close()
			c, err := api.New(api.Config{Address: server.URL, Token: token})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ctx := context.Background()
			_, renew := c.RenewLease(ctx, "a")
			for method, err := range map[string]error{"renew": renew, "delete": c.DeleteNetwork(ctx, "a", false)} {
				if err == nil || strings.Contains(err.Error(), token[:9]) || !strings.Contains(err.Error(), "(token)") {
					t.Errorf("%s: %v", method, err)
				}
			}
		})
	}
}
