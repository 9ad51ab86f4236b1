package agent

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
)

// hostNames are the full names of this host, as they were looked up last.
type hostNames struct{ known atomic.Pointer[[]string] }

// How often they are looked up: the second after a lookup that failed.
const (
	namesEvery = 10 * time.Minute
	namesAgain = time.Minute
)

// lookupTimeout bounds one lookup.
const lookupTimeout = 10 * time.Second

// acceptsHost says whether a request's Host can be trusted to mean this host. An
// address can, since a web page whose address is this host's came from this host;
// so can localhost, this host's own names, and those that the configuration allows.
// It makes no lookup: the owner of the name in the request could answer anything.
func (a *Agent) acceptsHost(host string) bool {
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
	if names := a.names.known.Load(); names != nil && slices.Contains(*names, host) || slices.Contains(a.ownNames(), host) {
		return true
	}
	c := a.current().HTTP
	patterns := slices.Clone(c.AllowedHosts)
	if name, _, err := net.SplitHostPort(c.Address); err == nil {
		patterns = append(patterns, name) // which was resolved to listen there
	}
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matchesHost(pattern, host) })
}

// matchesHost says whether a pattern of http.allowed_hosts has the name: itself, or,
// with "*." in front, as a part of every name below it.
func matchesHost(pattern, host string) bool {
	pattern = strings.ToLower(pattern)
	if below, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(host, below) && host != below
	}
	return host == pattern
}

// ownNames are the host's name and the node name, and what stands before their first
// dot.
func (a *Agent) ownNames() (names []string) {
	a.mu.Lock()
	node := a.env.id.Node
	a.mu.Unlock()
	host, _ := os.Hostname() // "" will do
	for _, name := range []string{host, node} {
		name = strings.ToLower(strings.TrimSuffix(name, "."))
		short, _, _ := strings.Cut(name, ".")
		names = append(names, name, short)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// learnNames looks up the full names of this host again and again until ctx ends:
// Prometheus, for one, may ask web1.example.com of the host web1. Only a listener
// that other hosts reach without TLS needs them.
func (a *Agent) learnNames(ctx context.Context, listener net.Addr) error {
	tcp, isTCP := listener.(*net.TCPAddr)
	if !isTCP || tcp.IP.IsLoopback() || a.certificates.current.Load() != nil {
		return nil
	}
	named := a.env.named // the node name is known once it is closed
	for {
		next := namesEvery
		names, err := a.fullNames(ctx)
		if err != nil {
			next = namesAgain
			if before := a.names.known.Load(); before != nil {
				names = append(names, *before...)
			}
		}
		a.names.known.Store(&names)
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-named:
			named = nil
		case <-timer.C:
		}
		timer.Stop()
	}
}

// fullNames are the names that the resolver of this host makes of its own names, in
// the domains that are configured for it, as far as they lead to an address of this
// host. An error says that there may be more.
func (a *Agent) fullNames(ctx context.Context) (names []string, err error) {
	var errs []error
	for _, name := range a.ownNames() {
		call, cancel := context.WithTimeout(ctx, lookupTimeout)
		full, addrs, err := a.o.LookupName(call, name)
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

// lookupName is the full name of a host, which /etc/hosts or DNS has, with its
// addresses.
func lookupName(ctx context.Context, name string) (full string, addrs []netip.Addr, err error) {
	if full, err = net.DefaultResolver.LookupCNAME(ctx, name); err != nil {
		return "", nil, err
	}
	addrs, err = net.DefaultResolver.LookupNetIP(ctx, "ip", full)
	return full, addrs, err
}

// isLocal says whether an address is one of this host's.
func isLocal(a netip.Addr) bool {
	if a = a.Unmap(); a.IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(own, func(o net.Addr) bool {
		p, err := netip.ParsePrefix(o.String())
		return err == nil && p.Addr() == a.WithZone("")
	})
}
