package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	status := func(code int, body string) error {
		return &url.Error{Op: "Get", URL: "http://127.0.0.1:8500/v1/kv/x", Err: &StatusError{Code: code, Body: body}}
	}
	refused := &url.Error{Op: "Get", URL: "http://127.0.0.1:1", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}
	for _, tt := range []struct {
		name string
		err  error
		want error // one of the sentinels, or nil for none
	}{
		{"none", nil, nil},
		{"forbidden", status(403, "Permission denied: token with AccessorID 'x' lacks permission 'key:write' on \"y\""), registry.ErrDenied},
		{"token gone", status(403, "ACL not found"), registry.ErrDenied},
		{"unauthorized by a proxy", status(401, ""), registry.ErrDenied},
		{"write of another host", status(403, "Access is restricted"), registry.ErrRefused},
		{"blocked endpoint", status(403, "Endpoint is blocked by agent configuration"), registry.ErrRefused},
		{"forwarded denial", status(500, "rpc error making call: Permission denied"), registry.ErrDenied},
		{"no leader", status(500, "No cluster leader"), registry.ErrUnavailable},
		{"write rate limit", status(503, "rate limit exceeded"), registry.ErrUnavailable},
		{"read rate limit", status(429, "Your IP is issuing too many concurrent connections"), registry.ErrUnavailable},
		{"bad gateway", status(502, ""), registry.ErrUnavailable},
		{"bad request", status(400, "Invalid Session TTL"), nil},
		{"not found as the api says it", api.StatusError{Code: 404, Body: "unknown service"}, nil},
		{"connection refused", refused, registry.ErrUnavailable},
		{"time-out of a call", fmt.Errorf("x: %w", context.DeadlineExceeded), registry.ErrUnavailable},
		{"cancelled", &url.Error{Op: "Get", Err: context.Canceled}, nil},
		{"answer cut off", io.ErrUnexpectedEOF, registry.ErrUnavailable},
		{"connection closed", io.EOF, registry.ErrUnavailable},
		{"no such host", &net.DNSError{Err: "no such host", Name: "consul.invalid"}, registry.ErrUnavailable},
		{"text of a denial", errors.New("Failed request: Permission denied"), registry.ErrDenied},
		{"classified before", fmt.Errorf("%w: x", registry.ErrUncertain), registry.ErrUncertain},
		{"an answer that is not Consul's", errors.New("invalid character '<' looking for beginning of value"), registry.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Classify(tt.err)
			for _, sentinel := range []error{registry.ErrDenied, registry.ErrRefused, registry.ErrUnavailable, registry.ErrUncertain} {
				want := sentinel == tt.want || errors.Is(tt.err, sentinel) || sentinel == registry.ErrDenied && tt.want == registry.ErrRefused
				if errors.Is(got, sentinel) != want {
					t.Errorf("%v is %q: %v, want %v", got, sentinel, !want, want)
				}
			}
			// The cause stays, only the URL is removed.
			cause := tt.err
			if status := (*StatusError)(nil); errors.As(tt.err, &status) {
				cause = status
			} else if url := (*url.Error)(nil); errors.As(tt.err, &url) {
				cause = url.Err
			}
			if !errors.Is(got, cause) {
				t.Errorf("%v lost its cause %v", got, cause)
			}
		})
	}
	if got := Classify(status(http.StatusForbidden, "Permission denied: x")).Error(); got != "permission denied: consul answered 403: Permission denied: x" {
		t.Errorf("text %q", got)
	}
	if got := Classify(refused).Error(); got != "the store is unavailable: dial: connection refused" {
		t.Errorf("text %q", got)
	}
}
