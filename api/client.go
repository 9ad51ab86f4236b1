package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DefaultAddress is where an agent listens by default.
const DefaultAddress = "127.0.0.1:5366"

// ConnectTimeout is how long a client waits for a connection to the agent.
const ConnectTimeout = 5 * time.Second

const (
	tokenHeader = "X-Consul-Token"
	indexHeader = "X-Leno-Index"

	// maxBody bounds a response unless Config.MaxBody does; 10,000 leases are about 4 MB.
	maxBody = 64 << 20
	// maxErrorBody bounds the text taken from a response that is not the agent's JSON, for example
	// a proxy's error page.
	maxErrorBody = 200
)

// Config holds the agent's address and the credentials to use. The zero value means the agent on
// this host, without a token.
type Config struct {
	// Address is host:port, http://host:port, https://host:port or unix:///path/to/socket; empty
	// means DefaultAddress.
	Address string

	// Token is a Consul ACL token. It is sent with requests that change the store, and not with others.
	// The agent passes it on; without a token, Consul applies its anonymous token, never the agent's own.
	Token string

	// ReadToken returns the token for a request that changes the store, instead of Token. An error is
	// returned by the method that makes the request. ReadToken may be called concurrently.
	ReadToken func() (string, error)

	// TLS is used for https addresses; nil trusts the host's certificate store. It is ignored when
	// HTTPClient has a transport.
	TLS *tls.Config

	// HTTPClient sends the requests. If nil, a client is used that waits for a connection no longer than
	// ConnectTimeout, and for an answer without a limit, so bound the calls with their contexts. New copies
	// it. Its transport is not used for unix addresses, and redirects are never followed because they would
	// carry the token elsewhere.
	HTTPClient *http.Client

	// MaxBody bounds a response, in bytes. 0 means 64 MB.
	MaxBody int64

	// MaxObjects bounds the objects of a response, each of which takes about a kilobyte of memory, although it may be
	// as short as {}. 0 means as many as fit into MaxBody.
	MaxObjects int
}

// Client talks to one agent. It is safe for concurrent use. Every method blocks until the agent
// has responded or its context ends.
//
// A response that is not a success is an *Error whose Code is the HTTP status: 400 names the wrong
// parameter, 403 carries Consul's reason, 404 lists what exists, 409 names the conflict, 503 means
// that the store cannot be reached. Any other error means that there was no usable response.
type Client struct {
	base  *url.URL
	token func() (string, error)
	http  *http.Client
	most  limits
}

// limits bound a response.
type limits struct {
	bytes   int64
	objects int // 0 for no limit
}

// check returns an error if a response exceeds a limit.
func (l limits) check(response []byte) error {
	switch {
	case int64(len(response)) > l.bytes:
		return fmt.Errorf("the answer is larger than %d bytes", l.bytes)
	case l.objects > 0 && bytes.Count(response, []byte("{")) > l.objects:
		return fmt.Errorf("the answer has more than %d objects", l.objects)
	}
	return nil
}

// New builds a client. It does not touch anything outside the process. It returns an error if the
// address has none of the forms of Config.Address.
func New(c Config) (*Client, error) {
	address := c.Address
	if address == "" {
		address = DefaultAddress
	}
	base, socket, err := parseAddress(address)
	if err != nil {
		return nil, err
	}
	client := http.Client{}
	if c.HTTPClient != nil {
		client = *c.HTTPClient
	}
	if client.Transport == nil || socket != "" {
		client.Transport = newTransport(socket, c.TLS)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	token := c.ReadToken
	if token == nil {
		token = func() (string, error) { return c.Token, nil }
	}
	return &Client{base: base, token: token, http: &client, most: limits{cmp.Or(c.MaxBody, maxBody), c.MaxObjects}}, nil
}

// parseAddress returns the base URL of an address, and the socket's path if the address names one.
func parseAddress(address string) (*url.URL, string, error) {
	bad := func(reason string) error {
		if at := strings.LastIndexByte(address, '@'); at >= 0 {
			address = "…" + address[at:] // there may be a password before it
		}
		return fmt.Errorf("address %q: %s; want host:port, http(s)://host:port or unix:///path", address, reason)
	}
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		if !strings.HasPrefix(path, "/") {
			return nil, "", bad("the socket's path is not absolute")
		}
		return &url.URL{Scheme: "http", Host: "localhost"}, path, nil
	}
	full := address
	if !strings.Contains(full, "://") {
		full = "http://" + full
	}
	u, err := url.Parse(full)
	switch {
	case err != nil:
		return nil, "", bad("not an address")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, "", bad("unknown scheme " + u.Scheme)
	case u.Host == "" || u.Hostname() == "":
		return nil, "", bad("the host is missing")
	case u.Scheme == "http" && u.Port() == "":
		return nil, "", bad("the port is missing")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, "", bad("has more than scheme, host, port and path")
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	return u, "", nil
}

func newTransport(socket string, conf *tls.Config) http.RoundTripper {
	d := net.Dialer{Timeout: ConnectTimeout}
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         d.DialContext,
		TLSClientConfig:     conf,
		TLSHandshakeTimeout: ConnectTimeout,
		ForceAttemptHTTP2:   true,
	}
	if socket != "" {
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		}
	}
	return t
}

// Close drops idle connections. The client stays usable.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// path joins and escapes elements: ("v1", "network", "a/b") becomes /v1/network/a%2Fb.
func path(elements ...string) string {
	var b strings.Builder
	for _, e := range elements {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(e))
	}
	return b.String()
}

// do makes one request and reads the whole response. A non-nil in is sent as JSON. A non-nil out
// receives the decoded JSON, or the raw body if it is a *[]byte. A status other than 2xx is
// returned as an *Error, unless it is listed in also.
func (c *Client) do(ctx context.Context, method, path string, in, out any, also ...int) (http.Header, error) {
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, c.most.bytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	if err := c.most.check(data); err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode/100 != 2 && !slices.Contains(also, resp.StatusCode) {
		return nil, failure(resp, data)
	}
	if raw, ok := out.(*[]byte); ok {
		*raw = data
		return resp.Header, nil
	}
	if out != nil {
		if err := json.Unmarshal(data, out); err != nil {
			return nil, fmt.Errorf("%s %s: status %d: not the agent's answer: %w", method, path, resp.StatusCode, err)
		}
	}
	return resp.Header, nil
}

// send makes one request. The caller closes the response's body.
func (c *Client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("%s %s: encode: %w", method, path, err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if changesStore(method, path) {
		token, err := c.token()
		if err != nil {
			return nil, err
		}
		if token != "" {
			req.Header.Set(tokenHeader, token)
		}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		// url.Error repeats the method and URL; the error inside it has the cause.
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	resp.Request = req // which the caller's transport may not have set
	return resp, nil
}

// changesStore reports whether the agent changes the store for a request, and so needs the token.
func changesStore(method, path string) bool {
	return (method == http.MethodPut || method == http.MethodDelete) && strings.HasPrefix(path, "/v1/network/")
}

// failure calls parseError with the request's token removed, because a proxy between the client and
// the agent may have put it into its response. The token is removed before a long text is cut, and
// again after decoding, because JSON may have escaped it.
func failure(resp *http.Response, body []byte) *Error {
	token := resp.Request.Header.Get(tokenHeader)
	if token == "" {
		return parseError(resp.StatusCode, body)
	}
	e := parseError(resp.StatusCode, bytes.ReplaceAll(body, []byte(token), []byte("(token)")))
	e.Message = strings.ReplaceAll(e.Message, token, "(token)")
	return e
}

// parseError parses an error body. The HTTP status always wins over the body.
func parseError(status int, body []byte) *Error {
	e := Error{}
	if json.Unmarshal(body, &e) == nil && e.Message != "" {
		e.Code = status
		return &e
	}
	text := strings.TrimSpace(string(body))
	if len(text) > maxErrorBody {
		text = strings.ToValidUTF8(text[:maxErrorBody], "") + "…"
	}
	message := fmt.Sprintf("unexpected answer: %d %s", status, http.StatusText(status))
	if text != "" {
		message += ": " + text
	}
	return &Error{Code: status, Message: message}
}

// index returns X-Leno-Index, or 0 when it is absent.
func index(h http.Header) uint64 {
	n, err := strconv.ParseUint(h.Get(indexHeader), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
