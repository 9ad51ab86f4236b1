package httpapi

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/strictjson"
	"github.com/lenonet/leno/registry"
)

// tokenOf returns the caller's token, from either header that Consul takes.
func tokenOf(r *http.Request) string {
	if token := r.Header.Get("X-Consul-Token"); token != "" {
		return token
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// maxQuoted bounds what an error or a line in the log quotes of a request, in bytes.
const maxQuoted = 64

// quoteText returns text of a request short enough to be shown.
func quoteText(text string) string { return registry.Shorten(text, maxQuoted) }

// quotePath returns the path of a request short enough to be shown.
func quotePath(r *http.Request) string { return registry.Shorten(r.URL.Path, 4*maxQuoted) }

// flag returns a parameter that is true or false, and false without it.
func flag(r *http.Request, name string) (bool, error) {
	switch values := r.URL.Query()[name]; {
	case len(values) == 0, values[0] == "false":
		return false, nil
	case values[0] == "true":
		return true, nil
	default:
		return false, badRequest("parameter %s: %q is neither true nor false", name, quoteText(values[0]))
	}
}

// subnetOf returns the subnet in a request's path, such as "10.5.34.0-24", which is how keys have it. IPv6 may keep its
// colons: "fd00:5:0:22::-64".
func subnetOf(r *http.Request) (netip.Prefix, error) {
	p, err := registry.ParseSubnetKey(strings.ReplaceAll(r.PathValue("subnet"), ":", "."))
	if err != nil {
		return p, badRequest("parameter subnet: %v", err)
	}
	return p, nil
}

// receiveBody reads a request's body, so that its handler waits for no more of it.
func receiveBody(r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return bodyError(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// readBody decodes a request's JSON into v.
func readBody(r *http.Request, v any) error {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = strictjson.Decode(body, v)
	}
	if err != nil {
		return bodyError(err)
	}
	return nil
}

// bodyError returns the error about a body that could not be read or decoded.
func bodyError(err error) error {
	var large *http.MaxBytesError
	var slow net.Error
	switch {
	case errors.As(err, &large):
		return api.Errorf(http.StatusRequestEntityTooLarge, "request body: larger than %d bytes", large.Limit)
	case errors.As(err, &slow) && slow.Timeout():
		return api.Errorf(http.StatusRequestTimeout, "request body: it did not arrive in time")
	}
	return badRequest("request body: %v", err)
}
