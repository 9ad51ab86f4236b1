package kubernetes

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/conns"
)

// access is how to reach the API server: its address, and the credentials as they were in the files.
type access struct {
	http      *http.Client
	transport *http.Transport
	base      *url.URL
	files     []fileState // that the credentials come from
	secret    string      // the path of the one with the token or certificate, "" without credentials
}

// credentialsError is the error of credentials that the API server does not accept. No right is missing.
type credentialsError struct{ file string }

func (e *credentialsError) Error() string {
	return "the API server does not accept the credentials in " + e.file
}

func (e *credentialsError) Unwrap() []error { return []error{registry.ErrToken, registry.ErrDenied} }

// unauthorized returns the error for the answer 401.
func (a *access) unauthorized() error {
	if a.secret == "" {
		return fmt.Errorf("%w: the API server does not accept the request's token, or requires one", registry.ErrDenied)
	}
	return &credentialsError{a.secret}
}

// fileState is a file as it was when it was read.
type fileState struct {
	path string
	info os.FileInfo // nil if it does not exist
}

// stateOf returns the present state of files. It follows links, which is how Kubernetes replaces mounted files.
func stateOf(paths []string) []fileState {
	var out []fileState
	for _, path := range paths {
		if path == "" {
			continue
		}
		info, _ := os.Stat(path)
		out = append(out, fileState{path, info})
	}
	return out
}

// hasChanged reports whether the file is another one now or was written.
func (f fileState) hasChanged() bool {
	now, err := os.Stat(f.path)
	if err != nil || f.info == nil {
		return err == nil || f.info != nil
	}
	return !os.SameFile(now, f.info) || now.Size() != f.info.Size() || !now.ModTime().Equal(f.info.ModTime())
}

// accessCache is the access to the API server, read again when its files change.
type accessCache struct {
	conf      Config
	anonymous bool // without the credentials in the files

	mu       sync.Mutex
	access   *access // nil before the first use
	unusable string  // the last error of changed credentials, "" if they can be used
}

func (c *accessCache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.access != nil {
		c.access.transport.CloseIdleConnections()
	}
}

// current returns the access with the credentials as they are in the files now. Credentials are rotated while
// the agent runs. While changed files cannot be used, the access from before stays in force.
func (c *accessCache) current() (*access, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.access
	if before != nil && !slices.ContainsFunc(before.files, fileState.hasChanged) {
		return before, nil
	}
	now, err := c.read()
	switch {
	case err != nil && before == nil:
		return nil, err
	case err != nil: // the next call tries again
		if text := err.Error(); text != c.unusable {
			c.unusable = text
			c.conf.Logger.Warn("changed credentials cannot be used, those from before stay in force", "error", err)
		}
		return before, nil
	case before != nil:
		before.transport.CloseIdleConnections()
		c.conf.Logger.Info("changed credentials were read")
	}
	c.access, c.unusable = now, ""
	return now, nil
}

// read reads the credentials.
func (c *accessCache) read() (*access, error) {
	failed := func(err error) (*access, error) {
		return nil, fmt.Errorf("%w: credentials for Kubernetes: %w", registry.ErrUnavailable, err)
	}
	// The states are those from before the files are read: a change in between is one more change.
	sources := stateOf(kubeconfigs(c.conf.Kubeconfig))
	conf, err := loadConfig(c.conf.Kubeconfig)
	if err != nil {
		return failed(err)
	}
	secret := cmp.Or(conf.BearerTokenFile, conf.CertFile, strings.Join(kubeconfigs(c.conf.Kubeconfig), ", "))
	if c.anonymous {
		secret = ""
		conf = rest.AnonymousClientConfig(conf)
	}
	conf.UserAgent = "leno"
	sources = append(sources, stateOf([]string{conf.BearerTokenFile, conf.CAFile, conf.CertFile, conf.KeyFile})...)
	transport, wrapped, err := newTransport(conf, c.conf.open)
	if err != nil {
		return failed(err)
	}
	base, _, err := rest.DefaultServerUrlFor(conf)
	if err != nil {
		return nil, fmt.Errorf("address of Kubernetes: %w: %w", registry.ErrInvalid, err)
	}
	return &access{&http.Client{Transport: wrapped}, transport, base, sources, secret}, nil
}

// newTransport returns a transport, and the same with the credentials. Rest's own transport would notice only after
// 45 s that the API server does not answer any more.
func newTransport(conf *rest.Config,
	open *conns.Set) (transport *http.Transport, wrapped http.RoundTripper, err error) {
	secured, err := rest.TLSConfigFor(conf)
	if err != nil {
		return nil, nil, err
	}
	dialer := net.Dialer{
		Timeout: requestTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable:   true,
			Idle:     keepAliveTime,
			Interval: keepAliveTime,
			Count:    1,
		},
	}
	transport = &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         open.Wrap(dialer.DialContext),
		TLSClientConfig:     secured,
		TLSHandshakeTimeout: requestTimeout,

		ResponseHeaderTimeout: requestTimeout,

		ForceAttemptHTTP2: true,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: keepAliveTime, PingTimeout: keepAliveTime},
	}
	if conf.Proxy != nil {
		transport.Proxy = conf.Proxy
	}
	wrapped, err = rest.HTTPWrappersForConfig(conf, transport)
	return transport, wrapped, err
}

// loadConfig returns the address of the API server and the credentials.
func loadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		conf, err := rest.InClusterConfig()
		if !errors.Is(err, rest.ErrNotInCluster) {
			return conf, err
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
}

// CheckKubeconfig returns an error if a client cannot use the kubeconfig of this path.
func CheckKubeconfig(path string) error {
	_, err := loadConfig(path)
	return err
}

// kubeconfigs returns the paths of the files that loadConfig may read outside a pod.
func kubeconfigs(path string) []string {
	if path != "" {
		return []string{path}
	}
	return clientcmd.NewDefaultClientConfigLoadingRules().GetLoadingPrecedence()
}
