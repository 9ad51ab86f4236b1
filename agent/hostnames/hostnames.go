// Package hostnames knows the names by which requests are sent to this host. A page whose name is pointed at this host
// after it was loaded (DNS rebinding) could read answers of every listener without TLS; it is recognised by that name.
package hostnames

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/conns"
)

// Options are what New needs.
type Options struct {
	Config   func() config.Config
	NodeName func() string
	Named    <-chan struct{} // closed once the node name is known

	// LookUp returns the full name of a host, such as web1.example.org for web1, with its addresses. nil asks /etc/hosts
	// and DNS.
	LookUp func(ctx context.Context, name string) (full string, addrs []netip.Addr, err error)
}

// Names knows the names of this host. It is safe for concurrent use.
type Names struct {
	o    Options
	full atomic.Pointer[[]string] // looked up last, nil before the first time
}

// New returns the names of this host.
func New(o Options) *Names {
	if o.LookUp == nil {
		o.LookUp = lookUpName
	}
	return &Names{o: o}
}

// How often the names are looked up, and how soon after a lookup that failed.
const (
	lookupEvery = 10 * time.Minute
	lookupAgain = time.Minute
)

// lookupTimeout bounds one lookup.
const lookupTimeout = 10 * time.Second

// maxQuoted is how many bytes of a Host an error quotes.
const maxQuoted = 64

// Check returns an error if a request's Host cannot be trusted to mean this host.
func (n *Names) Check(host string) error {
	if n.isAccepted(host) {
		return nil
	}
	return fmt.Errorf("the request is for the host %q, which is not a known name of this host: "+
		"use its address, localhost or its host name, or add the name to http.allowed_hosts",
		registry.Shorten(host, maxQuoted))
}

// isAccepted reports whether a request's Host can be trusted to mean this host. That is true of an address, because a
// web page from an address of this host came from this host, and of localhost, this host's own names and the names
// that the configuration allows. It makes no lookup: the owner of the name could answer anything.
func (n *Names) isAccepted(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	if names := n.full.Load(); names != nil && slices.Contains(*names, host) || slices.Contains(n.own(), host) {
		return true
	}
	c := n.o.Config()
	patterns := slices.Clone(c.HTTP.AllowedHosts)
	for _, address := range []string{c.HTTP.Address, c.Telemetry.Address} {
		if name, _, err := net.SplitHostPort(address); err == nil {
			patterns = append(patterns, name) // which was resolved to listen there
		}
	}
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matchesHost(pattern, host) })
}

// matchesHost reports whether a pattern of http.allowed_hosts matches a name. "leno.example.com" matches itself,
// "*.example.com" every name below example.com.
func matchesHost(pattern, host string) bool {
	pattern = strings.ToLower(pattern)
	if below, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(host, below) && host != below
	}
	return host == pattern
}

// own returns the host name, the node name, and both up to their first dot.
func (n *Names) own() (names []string) {
	host, _ := os.Hostname() // "" will do
	for _, name := range []string{host, n.o.NodeName()} {
		name = strings.ToLower(strings.TrimSuffix(name, "."))
		short, _, _ := strings.Cut(name, ".")
		names = append(names, name, short)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// Learn looks up the full names of this host again and again until ctx ends: Prometheus, for example, may ask for
// web1.example.com on the host web1. Only a listener that other hosts reach without TLS needs them.
func (n *Names) Learn(ctx context.Context, listener net.Addr, secured bool) {
	tcp, isTCP := listener.(*net.TCPAddr)
	if !isTCP || tcp.IP.IsLoopback() || secured {
		return
	}
	named := n.o.Named
	for {
		pause := lookupEvery
		names, err := n.lookUp(ctx)
		if err != nil {
			pause = lookupAgain
			if before := n.full.Load(); before != nil {
				names = append(names, *before...)
			}
		}
		n.full.Store(&names)
		select {
		case <-ctx.Done():
			return
		case <-named:
			named = nil
		case <-time.After(pause):
		}
	}
}

// lookUp returns the full names that the host's resolver gives for its own names in its search domains, if they lead
// to an address of this host. An error says that there may be more.
func (n *Names) lookUp(ctx context.Context) (names []string, err error) {
	var errs []error
	for _, name := range n.own() {
		call, cancel := context.WithTimeout(ctx, lookupTimeout)
		full, addrs, err := n.o.LookUp(call, name)
		cancel()
		var missing *net.DNSError
		switch {
		case errors.As(err, &missing) && missing.IsNotFound:
		case err != nil:
			errs = append(errs, err)
		case slices.ContainsFunc(addrs, isLocal):
			names = append(names, strings.ToLower(strings.TrimSuffix(full, ".")))
		}
	}
	return names, errors.Join(errs...)
}

// lookUpName asks /etc/hosts and DNS.
func lookUpName(ctx context.Context, name string) (full string, addrs []netip.Addr, err error) {
	if full, err = net.DefaultResolver.LookupCNAME(ctx, name); err != nil {
		return "", nil, err
	}
	addrs, err = net.DefaultResolver.LookupNetIP(ctx, "ip", full)
	return full, addrs, err
}

// isLocal reports whether an address is one of this host's.
func isLocal(a netip.Addr) bool {
	if a = a.Unmap(); a.IsLoopback() {
		return true
	}
	own, err := conns.HostAddrs()
	return err == nil && slices.Contains(own, a.WithZone(""))
}
