// Package transport carries requests to Consul. It sends each one under a token, which is fixed, read from a file or
// got by logging in, and tells what an error means for the caller.
package transport

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/conns"
)

// Defaults of Config.
const (
	DefaultCoalesce = 250 * time.Millisecond
	DefaultWait     = time.Minute

	// DefaultTimeout limits a request that does not block. Without a quorum Consul answers 500 after 9 to 12 s, which
	// is too long for a call that was in progress when the quorum came back.
	DefaultTimeout = 6 * time.Second

	// DefaultLinger is how long a token is kept after another one has replaced it. Requests in progress use it, and the
	// local Consul agent does for a service until it is registered again, which happens every 30 s.
	DefaultLinger = 40 * time.Second
)

// Config says where Consul is and how to reach it. Empty fields are set from the CONSUL_HTTP_* and CONSUL_* environment
// variables, then from Consul's own defaults.
type Config struct {
	// Address is host:port, http://host:port, https://host:port or unix:///path. Without a scheme, HTTPS is used when
	// CONSUL_HTTP_SSL is true, and HTTP otherwise.
	Address string

	// Credentials tell the ACL token. A token file is read on the first call, by Token.PrepareToken, and when Consul
	// answers 403. With a login, the first call logs in.
	registry.Credentials

	Datacenter string
	Namespace  string
	Partition  string
	TLS        TLS // for https

	Logger hclog.Logger // default: none

	// Hide is called with every token and JWT that this client uses as its own, before the first use, so that it can be
	// removed from logs. It may be called concurrently. Default: none.
	Hide func(secret string)

	// Dial opens the connections to Consul; network is "tcp" or "unix". It may be called concurrently and must honour
	// ctx. Default: a net.Dialer that gives up after 5s, and whose connections detect within 10s that the other end has
	// gone. Set it to inspect the traffic or to reach Consul in another way.
	Dial conns.Dial

	// Coalesce is the longest pause between two reads of a watched tree that changes, so that a burst of changes causes
	// few reads. Each pause is a random time between half of Coalesce and all of it, and longer while the directory of
	// changes is large. Default 250ms.
	Coalesce time.Duration
	// Wait is the longest time that a query blocks. Default 1m; Consul adds up to a sixteenth at random. A Consul whose
	// process hangs is noticed 7s later.
	Wait time.Duration

	Timeout time.Duration // of a request that does not block; default DefaultTimeout
	Linger  time.Duration // how long a replaced token is kept; default DefaultLinger
}

// TLS names PEM files and the server's expected name. Each connection reads the client's certificate and key again.
type TLS struct {
	CAFile     string
	CertFile   string
	KeyFile    string
	ServerName string
}

// WithDefaults returns c with the defaults of its empty fields, except those that come from the environment.
func (c Config) WithDefaults() Config {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Hide == nil {
		c.Hide = func(string) {}
	}
	if c.Dial == nil {
		c.Dial = newDialer().DialContext
	}
	c.Coalesce, c.Wait = cmp.Or(c.Coalesce, DefaultCoalesce), cmp.Or(c.Wait, DefaultWait)
	c.Timeout, c.Linger = cmp.Or(c.Timeout, DefaultTimeout), cmp.Or(c.Linger, DefaultLinger)
	return c
}

// Client makes requests to Consul under one token. It is safe for concurrent use.
type Client struct {
	API    *api.Client
	Token  *Token
	Host   string // the address of Consul without scheme and path, "" for a unix socket
	Doubts *Doubts

	// As in Config.
	Timeout, Wait, Coalesce time.Duration

	config api.Config
	base   *http.Transport
	open   *conns.Set // of base
}

// tokenPlaceholder keeps api.NewClient from reading tokens from the environment; each request replaces it.
const tokenPlaceholder = "set-by-the-transport"

// New returns a client. It reads the TLS files but does not connect to Consul; the first call reads the token file.
func New(c Config) (*Client, error) {
	c = c.WithDefaults()
	if c.Token != "" && c.TokenFile != "" || c.Login.IsSet() && c.Token+c.TokenFile != "" {
		return nil, errors.New("consul: more than one of token, token file and login is set")
	}
	conf := api.DefaultConfigWithLogger(c.Logger)
	token := newToken(c, withEnvironment(c.Credentials, conf))
	conf.TokenFile, conf.Token = "", tokenPlaceholder
	conf.Address = cmp.Or(c.Address, conf.Address)
	conf.Datacenter = cmp.Or(c.Datacenter, conf.Datacenter)
	conf.Namespace = cmp.Or(c.Namespace, conf.Namespace)
	conf.Partition = cmp.Or(c.Partition, conf.Partition)
	client := &Client{
		Token:    token,
		Host:     conf.Address,
		Doubts:   &Doubts{},
		Timeout:  c.Timeout,
		Wait:     c.Wait,
		Coalesce: c.Coalesce,
		base:     conf.Transport,
		open:     &conns.Set{},
	}
	if err := client.setAddress(conf, client.open.Wrap(c.Dial)); err != nil {
		return nil, err
	}
	var err error
	if client.base.TLSClientConfig, err = c.TLS.config(conf.TLSConfig); err != nil {
		return nil, fmt.Errorf("consul: tls: %w", err)
	}
	client.config = *conf
	client.API, err = client.newAPI()
	token.api = client.API
	return client, err
}

// setAddress splits the address, and makes dial open the connections.
func (c *Client) setAddress(conf *api.Config, dial conns.Dial) error {
	if strings.Contains(conf.Address, "@") && !strings.HasPrefix(conf.Address, "unix://") {
		return errors.New(
			"consul: there is a user or password in the address (CONSUL_HTTP_ADDR?): set CONSUL_HTTP_AUTH instead")
	}
	c.base.DialContext = dial
	if scheme, rest, found := strings.Cut(conf.Address, "://"); found {
		switch scheme {
		case "unix":
			c.base.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dial(ctx, "unix", rest)
			}
			c.Host, conf.Address, conf.Scheme = "", "localhost", "http"
		case "http", "https":
			host, path, _ := strings.Cut(rest, "/")
			c.Host, conf.Address, conf.Scheme = host, host, scheme
			conf.PathPrefix = strings.TrimSuffix("/"+path, "/")
		default:
			return fmt.Errorf("consul: address %q: unknown scheme %q, want http, https or unix", conf.Address, scheme)
		}
	}
	c.base.DisableCompression = c.Host == "" || isLoopback(c.Host) // it would cost more than it saves
	return nil
}

// isLoopback reports whether host, which may include a port, is this host by its address or name.
func isLoopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	addr, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return name == "localhost" || (err == nil && addr.IsLoopback())
}

// config returns the TLS configuration of the environment, where t does not say otherwise.
func (t TLS) config(c api.TLSConfig) (*tls.Config, error) {
	c.Address = cmp.Or(t.ServerName, c.Address)
	c.CAFile = cmp.Or(t.CAFile, c.CAFile)
	c.CertFile = cmp.Or(t.CertFile, c.CertFile)
	c.KeyFile = cmp.Or(t.KeyFile, c.KeyFile)
	load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil { // it does not name the files
			return nil, fmt.Errorf("certificate %s with key %s: %w", c.CertFile, c.KeyFile, err)
		}
		return &pair, nil
	}
	if c.CertFile != "" && c.KeyFile != "" {
		if _, err := load(nil); err != nil {
			return nil, err
		}
	}
	if c.CAFile != "" {
		if _, err := os.Stat(c.CAFile); err != nil { // the next error would not wrap fs.ErrNotExist
			return nil, err
		}
	}
	out, err := api.SetupTLSConfig(&c)
	if err == nil && c.CertFile != "" {
		out.GetClientCertificate = load
	}
	return out, err
}

func (c *Client) newAPI() (*api.Client, error) {
	conf := c.config
	conf.HttpClient = &http.Client{Transport: roundTripper{c.base}}
	client, err := api.NewClient(&conf)
	if err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	return client, nil
}

// As returns a client that makes its requests under a token of a caller, over the same connections. "" is Consul's
// anonymous token.
func (c *Client) As(secret string) *Client {
	other := *c
	other.Token = &Token{have: grant{secret: cmp.Or(secret, anonymousToken)}}
	return &other
}

// OverOneConnection calls f with a client that makes its requests one after another over one new connection, so that
// they reach the same Consul agent behind a balancer.
func (c *Client) OverOneConnection(f func(*Client) error) (err error) {
	one := *c
	one.base = c.base.Clone()
	one.base.MaxConnsPerHost = 1
	defer one.base.CloseIdleConnections()
	if one.API, err = one.newAPI(); err != nil {
		return err
	}
	return f(&one)
}

// Reconnect closes the connections from addresses that this host no longer has.
func (c *Client) Reconnect(log hclog.Logger) { c.open.Reconnect(log) }

// CloseIdle closes the connections that are not in use.
func (c *Client) CloseIdle() { c.base.CloseIdleConnections() }

// Write returns the options of a request that writes.
func (c *Client) Write(ctx context.Context) (*api.WriteOptions, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(c.Token.Context(ctx), c.Timeout)
	return (&api.WriteOptions{}).WithContext(ctx), cancel
}

// Post sends in to an endpoint that the API client does not know, and decodes the answer into out.
func (c *Client) Post(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Token.Context(ctx), c.Timeout)
	defer cancel()
	query := url.Values{}
	scope := map[string]string{"dc": c.config.Datacenter, "ns": c.config.Namespace, "partition": c.config.Partition}
	for name, value := range scope {
		if value != "" {
			query.Set(name, value)
		}
	}
	where := url.URL{Scheme: cmp.Or(c.config.Scheme, "http"), Host: c.config.Address, Path: c.config.PathPrefix + path,
		RawQuery: query.Encode()}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, where.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: roundTripper{c.base}}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(out)
}
