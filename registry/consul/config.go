package consul

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
)

// Defaults of Config.
const (
	DefaultKVPrefix = "leno"
	DefaultCoalesce = 250 * time.Millisecond
	DefaultSettle   = 4 * time.Minute
	DefaultWait     = time.Minute
	DefaultAudit    = 10 * time.Second
	DefaultRecent   = time.Minute
)

// Config contains Consul's address and the settings of the client. Empty fields are set from the CONSUL_HTTP_* and
// CONSUL_* environment variables, then from Consul's own defaults.
type Config struct {
	// Address is host:port, http://host:port, https://host:port or unix:///path. Without a scheme, HTTPS is used when
	// TLS is set or CONSUL_HTTP_SSL is true, and HTTP otherwise.
	Address string

	// Token is the ACL token itself. TokenFile is a file that contains it; it is read on the first call, by
	// PrepareToken, and when Consul answers 403. At most one of them is set.
	Token     string
	TokenFile string

	KVPrefix   string // prefix of every key, without slashes at its ends; default "leno"
	Datacenter string
	Namespace  string
	Partition  string
	TLS        TLS

	Logger hclog.Logger // default: none

	// Hide is called with every token that this client uses as its own, before the first use, so that the token can be
	// removed from logs. It may be called concurrently. Default: none.
	Hide func(secret string)

	// Coalesce is the longest pause between two reads of a watched tree that changes, so that a burst of changes causes
	// few reads. Each pause is a random time between half of Coalesce and all of it, and longer while the directory of
	// changes is large. Default 250ms.
	Coalesce time.Duration
	// Settle is how long records that are missing from a re-created or restored tree are kept, so that their hosts can
	// write them again. It must be at least twice the lease's TTL; default 4m.
	Settle time.Duration
	// Wait is the longest time that a query blocks. Default 1m; Consul adds up to a sixteenth at random. A Consul whose
	// process hangs is noticed 7s later.
	Wait time.Duration
	// Audit is how often one of a network's hosts compares the leases with the directory of changes, to find manual
	// changes and lapsed leases. Each host takes its turn after about Audit times the number of hosts, and after 2
	// hours at most. Default 10s.
	Audit time.Duration
	// Recent is how long an entry stays in the directory of changes. A host that was away for longer reads all leases.
	// Default 1m.
	Recent time.Duration

	// Dial opens the connections to Consul; network is "tcp" or "unix". It may be called concurrently and must honour
	// ctx. Default: a net.Dialer that gives up after 5s, and whose connections detect within 10s that the other end has
	// gone. Set it to inspect the traffic or to reach Consul in another way.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// For tests.
	timeout time.Duration // of a request that does not block; default callTimeout
	idle    time.Duration // time after which unused followers are dropped; default idleFollower
}

// TLS names PEM files and the server's expected name.
type TLS struct {
	CAFile     string
	CertFile   string
	KeyFile    string
	ServerName string
}

func (c Config) withDefaults() Config {
	c.KVPrefix = strings.Trim(c.KVPrefix, "/")
	if c.KVPrefix == "" {
		c.KVPrefix = DefaultKVPrefix
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Hide == nil {
		c.Hide = func(string) {}
	}
	if c.Coalesce <= 0 {
		c.Coalesce = DefaultCoalesce
	}
	if c.Settle <= 0 {
		c.Settle = DefaultSettle
	}
	if c.Wait <= 0 {
		c.Wait = DefaultWait
	}
	if c.Audit <= 0 {
		c.Audit = DefaultAudit
	}
	if c.Recent <= 0 {
		c.Recent = DefaultRecent
	}
	if c.Dial == nil {
		c.Dial = newDialer().DialContext
	}
	if c.idle <= 0 {
		c.idle = idleFollower
	}
	if c.timeout <= 0 {
		c.timeout = callTimeout
	}
	return c
}

// connection is the result of Config and the environment.
type connection struct {
	config api.Config
	base   *http.Transport
	token  *token
	host   string // the address without scheme and path; "" for a unix socket
}

// tokenPlaceholder keeps api.NewClient from reading tokens from the environment; the transport replaces it in every
// request.
const tokenPlaceholder = "set-by-the-transport"

func (c Config) connection() (connection, error) {
	if c.Token != "" && c.TokenFile != "" {
		return connection{}, errors.New("consul: token and token file are both set")
	}
	conf := api.DefaultConfigWithLogger(c.Logger)

	tok := &token{hide: c.Hide}
	tok.set(c.source(conf))
	tok.loaded = false // the first call reads it
	conf.TokenFile, conf.Token = "", tokenPlaceholder

	override(&conf.Datacenter, c.Datacenter)
	override(&conf.Namespace, c.Namespace)
	override(&conf.Partition, c.Partition)
	override(&conf.TLSConfig.CAFile, c.TLS.CAFile)
	override(&conf.TLSConfig.CertFile, c.TLS.CertFile)
	override(&conf.TLSConfig.KeyFile, c.TLS.KeyFile)
	override(&conf.TLSConfig.Address, c.TLS.ServerName)
	if c.TLS != (TLS{}) {
		conf.Scheme = "https"
	}
	override(&conf.Address, c.Address)

	if strings.Contains(conf.Address, "@") && !strings.HasPrefix(conf.Address, "unix://") {
		return connection{}, errors.New(
			"consul: there is a user or password in the address (CONSUL_HTTP_ADDR?): set CONSUL_HTTP_AUTH instead")
	}
	base := conf.Transport
	base.DialContext = c.Dial
	host := ""
	scheme, rest, found := strings.Cut(conf.Address, "://")
	switch {
	case !found:
		host = conf.Address
	case scheme == "unix":
		base.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.Dial(ctx, "unix", rest)
		}
		conf.Address, conf.Scheme = "localhost", "http"
	case scheme == "http" || scheme == "https":
		var path string
		host, path, _ = strings.Cut(rest, "/")
		conf.Address, conf.Scheme = host, scheme
		if path != "" {
			conf.PathPrefix = "/" + strings.TrimSuffix(path, "/")
		}
	default:
		return connection{}, fmt.Errorf("consul: address %q: unknown scheme %q, want http, https or unix",
			conf.Address, scheme)
	}

	// On the same host, compression costs more than it saves.
	base.DisableCompression = scheme == "unix" || loopback(host)
	if cert, key := conf.TLSConfig.CertFile, conf.TLSConfig.KeyFile; cert != "" && key != "" {
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil { // the client's own error does not name the files
			return connection{}, fmt.Errorf("consul: tls: certificate %s with key %s: %w", cert, key, err)
		}
	}
	tlsConfig, err := api.SetupTLSConfig(&conf.TLSConfig)
	if err != nil {
		return connection{}, fmt.Errorf("consul: tls: %w", err)
	}
	base.TLSClientConfig = tlsConfig
	return connection{config: *conf, base: base, token: tok, host: host}, nil
}

// loopback reports whether host, which may include a port, is this host by its address or name.
func loopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	addr, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return name == "localhost" || (err == nil && addr.IsLoopback())
}

// client builds the API client. It sends each request under the token in the request's context.
func (c connection) client() (*api.Client, error) {
	conf := c.config
	conf.HttpClient = &http.Client{Transport: &transport{base: c.base}}
	client, err := api.NewClient(&conf)
	if err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	return client, nil
}

func override(dst *string, value string) {
	if value != "" {
		*dst = value
	}
}
