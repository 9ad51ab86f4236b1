package httpapi

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lenonet/leno/registry/conns"
)

// hostNames knows the names of this host. It is safe for concurrent use.
type hostNames struct {
	agent  Agent
	lookup func(ctx context.Context, name string) (full string, addrs []netip.Addr, err error)
	named  <-chan struct{}          // closed once the node name is known
	full   atomic.Pointer[[]string] // looked up last, nil before the first time
}

// How often the names are looked up, and how soon after a lookup that failed.
const (
	lookupEvery = 10 * time.Minute
	lookupAgain = time.Minute
)

// lookupTimeout bounds one lookup.
const lookupTimeout = 10 * time.Second

// isAccepted reports whether a request's Host can be trusted to mean this host. That is true of an address, because a
// web page from an address of this host came from this host, and of localhost, this host's own names and the names
// that the configuration allows. It makes no lookup: the owner of the name could answer anything.
func (h *hostNames) isAccepted(host string) bool {
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
	if names := h.full.Load(); names != nil && slices.Contains(*names, host) || slices.Contains(h.own(), host) {
		return true
	}
	c := h.agent.Config().HTTP
	patterns := slices.Clone(c.AllowedHosts)
	if name, _, err := net.SplitHostPort(c.Address); err == nil {
		patterns = append(patterns, name) // which was resolved to listen there
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
func (h *hostNames) own() (names []string) {
	host, _ := os.Hostname() // "" will do
	for _, name := range []string{host, h.agent.Self().NodeName} {
		name = strings.ToLower(strings.TrimSuffix(name, "."))
		short, _, _ := strings.Cut(name, ".")
		names = append(names, name, short)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// learn looks up the full names of this host again and again until ctx ends: Prometheus, for example, may ask for
// web1.example.com on the host web1. Only a listener that other hosts reach without TLS needs them.
func (h *hostNames) learn(ctx context.Context, listener net.Addr, secured bool) {
	tcp, isTCP := listener.(*net.TCPAddr)
	if !isTCP || tcp.IP.IsLoopback() || secured {
		return
	}
	named := h.named
	for {
		pause := lookupEvery
		names, err := h.lookUp(ctx)
		if err != nil {
			pause = lookupAgain
			if before := h.full.Load(); before != nil {
				names = append(names, *before...)
			}
		}
		h.full.Store(&names)
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
func (h *hostNames) lookUp(ctx context.Context) (names []string, err error) {
	var errs []error
	for _, name := range h.own() {
		call, cancel := context.WithTimeout(ctx, lookupTimeout)
		full, addrs, err := h.lookup(call, name)
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

// lookupName asks /etc/hosts and DNS.
func lookupName(ctx context.Context, name string) (full string, addrs []netip.Addr, err error) {
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
