// Package kubernetes stores the leases of one network in the Node objects of Kubernetes, as flannel does with
// --kube-subnet-mgr: hosts that run flannel and hosts that run leno can share the network.
//
// Kubernetes assigns each host's subnets, spec.podCIDRs of its Node. The Node's annotations tell other hosts how to
// reach them: flannel's annotations, and one more, "leno.lenonet.io/lease", with everything that flannel does not know.
// A Node without it belongs to a host that runs flannel. The network is flannel's configuration, in a file or in a
// ConfigMap, which its operator maintains. So a client neither defines networks nor takes leases from other hosts, and
// there are no reservations: these methods return registry.ErrNotSupported.
//
// A lease is held for as long as its Node exists. Its session is the Node's uid and, of a host with leno, the node id:
// of two hosts that use the same Node, each sees that another one holds the lease.
//
// Resource versions are used as numbers. Officially they are opaque strings; they are etcd's revisions wherever etcd is
// the storage of Kubernetes.
package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/conns"
)

// Defaults of Config.
const (
	DefaultNetwork          = "default"
	DefaultNetConf          = "/etc/kube-flannel/net-conf.json"
	DefaultAnnotationPrefix = "flannel.alpha.coreos.com"
)

// Config configures a client.
type Config struct {
	// Kubeconfig is the path of the file with the API server's address and credentials. Without one, a client in a pod
	// uses the pod's service account, and another one what kubectl would use.
	Kubeconfig string
	NodeName   string // this host's Node; "" stands for the environment variable NODE_NAME
	Network    string // leno's name of the network, "" for DefaultNetwork

	// NetConf is the path of flannel's configuration of the network, "" for DefaultNetConf.
	NetConf string
	// ConfigMap contains the configuration instead of NetConf, if its name is set.
	ConfigMap ConfigMap

	AnnotationPrefix string        // flannel's -kube-annotation-prefix, "" for DefaultAnnotationPrefix
	Settle           time.Duration // how long a Node that vanished without having been deleted is kept
	Logger           hclog.Logger

	open *conns.Set
}

// ConfigMap is one key of a ConfigMap, for example net-conf.json of kube-flannel/kube-flannel-cfg.
type ConfigMap struct{ Namespace, Name, Key string }

// withDefaults returns the configuration with its defaults.
func (c Config) withDefaults() Config {
	c.NodeName = cmp.Or(c.NodeName, os.Getenv("NODE_NAME"))
	c.Network = cmp.Or(c.Network, DefaultNetwork)
	c.NetConf = cmp.Or(c.NetConf, DefaultNetConf)
	c.AnnotationPrefix = cmp.Or(c.AnnotationPrefix, DefaultAnnotationPrefix)
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return c
}

// Time limits.
const (
	requestTimeout  = 5 * time.Second  // until the API server begins its answer
	transferTimeout = 30 * time.Second // of the rest of an answer
	keepAliveTime   = 5 * time.Second  // of silence, after which a connection is checked for as long
	// idleTime is how long the Nodes are followed while no call waits for a change.
	idleTime = time.Minute
)

// Client implements registry.Registry.
type Client struct {
	conf Config
	own  *connection
	// shared is the access of all API callers, who add their tokens to the requests.
	shared *accessCache
}

// Abilities implements registry.Registry. The credentials are kept up to date by other programs. Networks are not
// deleted, so there is nothing to forget.
func (c *Client) Abilities() registry.Abilities {
	return registry.Abilities{
		Probe:     c.Probe,
		Followed:  c.Followed,
		Forget:    func(string) {},
		NodeName:  func(context.Context) (string, error) { return c.conf.NodeName, nil },
		SetSettle: func(d time.Duration) { c.own.settle.Store(int64(d)) },
		Close:     c.Close,
		Records:   c,
	}
}

// New returns a client. It reads its files and connects when it is used first, so errors are those of the calls.
func New(c Config) *Client {
	c = c.withDefaults()
	c.open = &conns.Set{}
	settle := &atomic.Int64{}
	settle.Store(int64(c.Settle))
	own := newConnection(c, &accessCache{conf: c}, settle)
	return &Client{conf: c, own: own, shared: &accessCache{conf: c, anonymous: true}}
}

// Close ends the client's connections. Calls that wait for changes fail; those of other tokens end with their contexts.
func (c *Client) Close() error {
	c.own.mirror.Close()
	c.own.access.close()
	c.shared.close()
	return nil
}

// Probe reads the Node of this host, which need not exist.
func (c *Client) Probe(ctx context.Context) error {
	_, err := c.own.node(ctx, c.conf.NodeName)
	if errors.Is(err, errNotFound) {
		return nil
	}
	return registry.Wrap(err, "probe")
}

// Reconnect implements registry.Registry.
func (c *Client) Reconnect() { c.conf.open.Reconnect(c.conf.Logger) }

// As implements registry.Registry. A token is a bearer token, such as that of a service account. The result has nothing
// that must be closed: all tokens share connections, and Nodes are followed only while one of its calls waits for them.
// So callers may invent any number of tokens.
func (c *Client) As(token string) registry.Registry {
	return &Client{conf: c.conf, own: c.own.guest(token, c.shared), shared: c.shared}
}
