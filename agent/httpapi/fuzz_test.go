package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
)

// FuzzAPI sends arbitrary requests to a server. No answer is about a fault of the server, which goes on.
func FuzzAPI(f *testing.F) {
	h := onSocket(f)
	definition := `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"recorder"}}`
	for _, seed := range [][5]string{
		{"GET", "/healthz", "", "Accept-Encoding: gzip", ""},
		{"GET", "/v1/network/n/leases", "index=1&wait=1ms", "Authorization: Bearer x", ""},
		{"GET", "/v1/network/n/leases", "memory=true", "", ""},
		{"GET", "/v1/networks", "index=18446744073709551615&wait=9223372036854775807ns", "X-Request-Id: \x00", ""},
		{"GET", "/v1/agent/events", "network=n&index=0", "", ""},
		{"GET", "/v1/agent/metrics", "format=prometheus", "Accept: text/plain; version=0.0.4", ""},
		{"PUT", "/v1/network/m", "force=true", "Content-Type: application/json", definition},
		{"POST", "/v1/network/n/plan", "", "", definition},
		{"POST", "/v1/network/m/plan", "", "", `{"pools":[{"prefix":"fd00:5::/48","min":"::"},null],"backend":{"type":"recorder","x":[[[]]]}}`},
		{"PUT", "/v1/network/n/reservation/10.5.1.0-24", "force=false", "X-Consul-Token: y", `{"node":"z"}`},
		{"DELETE", "/v1/network/n/lease/fd00:5::-64", "%zz", "Expect: 100-continue", ""},
		{"DELETE", "/v1/network/..%2fn//reservation/10.5.1.0-99", "", "Transfer-Encoding: chunked", "5\r\n{\"no\r\n0\r\n\r\n"},
		{"CONNECT", "//x:1", "", "Host: evil", ""},
		{"PRI", "*", "", "Upgrade: h2c\r\nConnection: Upgrade", ""},
		{"GET", "/ui/network/n", "q=%3Cscript%3E&from=-1", "If-None-Match: *", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4])
	}
	f.Fuzz(func(t *testing.T, method, path, query, header, body string) {
		conn, err := net.Dial("unix", h.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		patience := 20 * time.Second
		waits := strings.Contains(query, "index") || strings.Contains(path, "monitor") || strings.Contains(path, "probe")
		if waits {
			patience = 100 * time.Millisecond
		}
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		request := fmt.Sprintf("%s %s?%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n\r\n%s",
			method, path, query, len(body), header, body)
		go func() {
			_, _ = io.WriteString(conn, request)
			_ = conn.(*net.UnixConn).CloseWrite() // what lacks its end does not wait for it
		}()
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			if late, ok := err.(net.Error); ok && late.Timeout() && !waits {
				t.Errorf("no answer to %q", request)
			}
			return // not HTTP at all, or a connection that was closed by its own header
		}
		defer r.Body.Close()
		answer, err := io.ReadAll(r.Body)
		if r.StatusCode == http.StatusInternalServerError {
			t.Errorf("%d %s to %q", r.StatusCode, answer, request)
		}
		var refused api.Error
		if err == nil && r.StatusCode >= 400 && r.Header.Get("Content-Type") == "application/json" && r.Header.Get("Content-Encoding") == "" &&
			method != http.MethodHead && !strings.HasSuffix(path, "z") && (json.Unmarshal(answer, &refused) != nil || refused.Code != r.StatusCode || refused.Message == "") {
			t.Errorf("%d %s to %q", r.StatusCode, answer, request)
		}
	})
}
