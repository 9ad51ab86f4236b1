package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/flannel"
)

// How often the network's configuration is read while a call waits for it to change. A ConfigMap is not watched: a pod
// that reads it from a file need not have the right.
const (
	fileInterval      = 2 * time.Second
	configMapInterval = 30 * time.Second
)

// readDefinition returns the network's configuration as it is now. Its index is the time in seconds at which it was
// first read, or one more than the index before: a resource version or the time of a file does not grow when an older
// state is restored. One call reads at a time, so that no older configuration follows a later one. The error is an
// ErrNetworkNotFound if there is none.
func (c *connection) readDefinition(ctx context.Context) (value []byte, index uint64, err error) {
	select {
	case c.reading <- struct{}{}:
		defer func() { <-c.reading }()
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	if m := c.conf.ConfigMap; m.Name != "" {
		value, err = c.readConfigMap(ctx, m)
	} else {
		value, err = readFile(c.conf.NetConf)
	}
	if err != nil {
		return nil, 0, registry.Wrap(err, "read %s", c.conf.source())
	}
	if c.index == 0 || string(value) != c.value {
		c.value, c.index = string(value), max(uint64(max(1, time.Now().Unix())), c.index+1)
	}
	return value, c.index, nil
}

// source names where the configuration is.
func (c Config) source() string {
	if m := c.ConfigMap; m.Name != "" {
		return fmt.Sprintf("key %s of ConfigMap %s/%s", m.Key, m.Namespace, m.Name)
	}
	return c.NetConf
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", registry.ErrNetworkNotFound, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", registry.ErrUncertain, err)
	}
	defer f.Close()
	value, err := io.ReadAll(io.LimitReader(f, registry.MaxRecordSize+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", registry.ErrUncertain, err)
	}
	return value, nil
}

func (c *connection) readConfigMap(ctx context.Context, m ConfigMap) ([]byte, error) {
	var o struct {
		Data map[string]string `json:"data"`
	}
	path := "/api/v1/namespaces/" + url.PathEscape(m.Namespace) + "/configmaps/" + url.PathEscape(m.Name)
	err := c.call(ctx, request{method: "GET", path: path}, &o)
	if errors.Is(err, errNotFound) {
		err = fmt.Errorf("%w: %w", registry.ErrNetworkNotFound, err)
	}
	if err != nil {
		return nil, err
	}
	value, ok := o.Data[m.Key]
	if !ok {
		return nil, fmt.Errorf("%w: the ConfigMap has no such key", registry.ErrNetworkNotFound)
	}
	return []byte(value), nil
}

// parse returns the network of a configuration.
func (c *connection) parse(value []byte, index uint64) (registry.Network, error) {
	n, err := flannel.ParseNetwork(c.conf.Network, value)
	if _, ok := errors.AsType[*registry.DeletedError](err); ok { // a record that was copied from etcd
		return registry.Network{}, registry.InvalidRecord(`the member "leno" records that the network was deleted`)
	}
	if err != nil {
		return registry.Network{}, err
	}
	n.CreateIndex, n.ModifyIndex = 1, index
	return n, nil
}

// CheckNetConf returns an error if data, the content of flannel's configuration file, defines no network.
func CheckNetConf(data []byte) error {
	_, err := flannel.ParseNetwork(DefaultNetwork, data)
	return err
}

// network returns the network as its configuration is now.
func (c *connection) network(ctx context.Context) (registry.Network, error) {
	value, index, err := c.readDefinition(ctx)
	if err != nil {
		return registry.Network{}, err
	}
	n, err := c.parse(value, index)
	return n, registry.Wrap(err, "%s", c.conf.source())
}

// Network implements registry.Networks.
func (c *Client) Network(ctx context.Context, name string) (registry.Network, error) {
	if err := c.check(name); err != nil {
		return registry.Network{}, err
	}
	n, err := c.own.network(ctx)
	return n, registry.Wrap(err, "network %s", name)
}

// check returns an ErrNetworkNotFound for any other network than the one that there is.
func (c *Client) check(name string) error {
	if name != c.conf.Network {
		return fmt.Errorf("network %s: %w: Kubernetes has only network %s", name, registry.ErrNetworkNotFound, c.conf.Network)
	}
	return nil
}

// WatchNetworks implements registry.Networks.
func (c *Client) WatchNetworks(ctx context.Context, after uint64) (registry.NetworkSet, uint64, error) {
	interval := fileInterval
	if c.conf.ConfigMap.Name != "" {
		interval = configMapInterval
	}
	for {
		value, modified, err := c.own.readDefinition(ctx)
		if err != nil && !errors.Is(err, registry.ErrNetworkNotFound) {
			return registry.NetworkSet{}, 0, err
		}
		var set registry.NetworkSet
		if err == nil {
			n, err := c.own.parse(value, modified)
			if err != nil {
				set.Bad = []registry.BadRecord{{Key: c.conf.source(), Reason: err.Error(), Network: c.conf.Network}}
			} else {
				set.Networks = []registry.Network{n}
			}
		}
		index := c.own.versions.Index("networks", fmt.Sprintf("%t %d %s", err == nil, modified, value), max(1, modified))
		if index != after {
			return set, index, nil
		}
		if err := registry.Sleep(ctx, interval); err != nil {
			return registry.NetworkSet{}, 0, err
		}
	}
}

// Holders implements registry.Networks.
func (c *Client) Holders(ctx context.Context, network string) ([]registry.Holder, error) {
	n, err := c.Network(ctx, network)
	if errors.Is(err, registry.ErrNetworkNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t, err := c.own.mirror.Refresh(ctx)
	if err != nil {
		return nil, registry.Wrap(err, "holders of network %s", network)
	}
	read, kept := c.own.reader(n)
	set, _, _, _ := c.own.leases.Compare(t, n, read, kept) // without an error
	var out []registry.Holder
	for _, l := range set.Leases {
		if !l.Missing {
			out = append(out, registry.Holder{Node: l.Node, Session: l.Session, CreateIndex: l.CreateIndex})
		}
	}
	slices.SortFunc(out, func(a, b registry.Holder) int { return cmp.Compare(a.Node, b.Node) })
	return out, nil
}
