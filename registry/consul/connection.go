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

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry/conns"
)

// connection is the result of Config and the environment.
type connection struct {
	config api.Config
	base   *http.Transport
	open   *conns.Set // of base
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
	if c.Login.IsSet() && (c.Token != "" || c.TokenFile != "") {
		return connection{}, errors.New("consul: login is set, and so is a token or a token file")
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
	open := &conns.Set{}
	dial := open.Wrap(c.Dial)
	base.DialContext = dial
	host := ""
	scheme, rest, found := strings.Cut(conf.Address, "://")
	switch {
	case !found:
		host = conf.Address
	case scheme == "unix":
		base.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx, "unix", rest)
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
	return connection{config: *conf, base: base, open: open, token: tok, host: host}, nil
}

// source returns the configured token or, without one, the token of the environment, in the order in which Consul's own
// commands look for it.
func (c Config) source(environment *api.Config) (value, file string) {
	if c.Token != "" || c.TokenFile != "" || c.Login.IsSet() {
		return c.Token, c.TokenFile
	}
	if environment.TokenFile != "" {
		return "", environment.TokenFile
	}
	return environment.Token, ""
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

// client builds the API client. It sends each request under the token in the
// request's context.
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
