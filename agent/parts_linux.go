package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/files"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/alloc"
	"github.com/lenonet/leno/backend/hostgw"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/udp"
	"github.com/lenonet/leno/backend/vxlan"
	"github.com/lenonet/leno/backend/wireguard"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul"
	"github.com/lenonet/leno/registry/consul/transport"
	"github.com/lenonet/leno/registry/etcd"
	"github.com/lenonet/leno/registry/kubernetes"
	"github.com/lenonet/leno/registry/memory"
)

// Backends returns the backends by type, for example "vxlan".
func Backends() map[string]backend.Type {
	return map[string]backend.Type{
		"alloc":     alloc.Type(),
		"host-gw":   hostgw.Type(),
		"udp":       udp.Type(),
		"vxlan":     vxlan.Type(),
		"wireguard": wireguard.Type(),
	}
}

// registries returns the functions that open each kind of store, for example "consul".
func registries() map[string]func(config.Config, hclog.Logger, func(string)) (registry.Registry, error) {
	return map[string]func(config.Config, hclog.Logger, func(string)) (registry.Registry, error){
		config.StoreConsul:     openConsul,
		config.StoreEtcd:       openEtcd,
		config.StoreKubernetes: openKubernetes,
		inMemory: func(config.Config, hclog.Logger, func(string)) (registry.Registry, error) {
			return memory.New().Client(), nil
		},
	}
}

// OpenRegistry opens the store of a configuration, and returns the name that `leno status` shows for it. It calls hide
// with secrets that must not be logged; hide may be nil.
func OpenRegistry(c config.Config, log hclog.Logger, hide func(secret string)) (registry.Registry, string, error) {
	reg, err := registries()[c.Store()](c, log, hide)
	return reg, registryName(c), err
}

// registryName returns the name of a store for status, for example "consul at 127.0.0.1:8500".
func registryName(c config.Config) string {
	kind := c.Store()
	switch kind {
	case config.StoreConsul:
		return kind + " at " + c.Consul.ServerAddress()
	case config.StoreEtcd:
		var servers []string
		for _, endpoint := range c.Etcd.Endpoints {
			_, server, found := strings.Cut(endpoint, "://")
			if !found {
				server = endpoint
			}
			servers = append(servers, server)
		}
		return kind + " at " + strings.Join(servers, ", ")
	}
	return kind
}

func openConsul(c config.Config, log hclog.Logger, hide func(secret string)) (registry.Registry, error) {
	if err := readable("consul", c.Consul.TLS); err != nil {
		return nil, err
	}
	reg, err := consul.New(consul.Config{
		Config: transport.Config{
			Address: c.Consul.ServerAddress(),
			Credentials: registry.Credentials{
				Token: c.Consul.Token, TokenFile: c.Consul.TokenFile, Login: registry.Login(c.Consul.Login),
			},
			Datacenter: c.Consul.Datacenter, Namespace: c.Consul.Namespace, Partition: c.Consul.Partition,
			TLS:    transport.TLS(c.Consul.TLS),
			Logger: log.Named("consul"), Hide: hide,
		},
		KVPrefix: c.Consul.KVPrefix,
		Settle:   peers.SettleTime(c.Lease),
	})
	if err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	return reg, nil
}

func openEtcd(c config.Config, log hclog.Logger, hide func(secret string)) (registry.Registry, error) {
	if err := readable("etcd", c.Etcd.TLS); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), files.ReadTimeout)
	defer cancel()
	password, err := c.Etcd.ReadPassword(ctx)
	if err != nil {
		return nil, fmt.Errorf("etcd.password_file: %w", err)
	}
	if hide != nil && password != "" {
		hide(password)
	}
	return etcd.New(etcd.Config{
		Endpoints: c.Etcd.Endpoints,
		Prefix:    c.Etcd.Prefix,
		Network:   c.Etcd.Network,
		Username:  c.Etcd.Username,
		Password:  password,
		TLS:       etcd.TLS(c.Etcd.TLS),
		Settle:    peers.SettleTime(c.Lease),
		Logger:    log.Named("etcd"),
	}), nil
}

func openKubernetes(c config.Config, log hclog.Logger, _ func(secret string)) (registry.Registry, error) {
	namespace, name, key := c.Kubernetes.ConfigMapKey()
	return kubernetes.New(kubernetes.Config{
		Kubeconfig:       c.Kubernetes.Kubeconfig,
		NodeName:         c.Kubernetes.NodeName,
		Network:          c.Kubernetes.Network,
		NetConf:          c.Kubernetes.NetConf,
		ConfigMap:        kubernetes.ConfigMap{Namespace: namespace, Name: name, Key: key},
		AnnotationPrefix: c.Kubernetes.AnnotationPrefix,
		Settle:           peers.SettleTime(c.Lease),
		Logger:           log.Named("kubernetes"),
	}), nil
}

// readable returns an error if one of the files cannot be read in time. A store's client reads them without a time
// limit and could block on them. block is the name of the block that contains the options.
func readable(block string, t config.TLS) error {
	ctx, cancel := context.WithTimeout(context.Background(), files.ReadTimeout)
	defer cancel()
	var errs []error
	for _, file := range []struct{ option, path string }{
		{".tls.ca_file", t.CAFile}, {".tls.cert_file", t.CertFile}, {".tls.key_file", t.KeyFile},
	} {
		if file.path == "" {
			continue
		}
		if _, err := files.Read(ctx, file.path); err != nil {
			errs = append(errs, fmt.Errorf("%s%s: %w", block, file.option, err))
		}
	}
	return errors.Join(errs...)
}

// selectUnderlay selects the underlay from this host's interfaces and routes.
func selectUnderlay(c config.Underlay, pools []netip.Prefix, peers []netip.Addr) (underlay.Choice, error) {
	return underlay.Select(c, underlay.Need{IPv4: true, IPv6: true, Overlay: pools, Peers: peers})
}

// readKernelState reads what the kernel has of a network's datapath: its device, and the routes in its pools.
func readKernelState(ctx context.Context, link string, pools []netip.Prefix) (datapath.KernelState, error) {
	handle, err := kernel.Open()
	if err != nil {
		return datapath.KernelState{}, err
	}
	defer handle.Close()
	routes, err := handle.Routes(kernel.Owner{Pools: pools}).List(ctx)
	if err != nil {
		return datapath.KernelState{}, err
	}
	var out datapath.KernelState
	for _, route := range routes {
		if route.Unreachable {
			out.Refuses = true
		} else {
			out.Routes++
		}
	}
	device, err := handle.Link(link)
	if err != nil || device == nil {
		return out, err
	}
	attrs := device.Attrs()
	out.Device, out.Up, out.Carrier = true, attrs.RawFlags&unix.IFF_UP != 0, attrs.RawFlags&unix.IFF_LOWER_UP != 0
	addrs, err := handle.Addresses(attrs.Index).List(ctx)
	for addr := range addrs {
		out.Addrs = append(out.Addrs, addr.Addr())
	}
	return out, err
}

// watchKernel calls changed at each change of the kernel that may matter to a network or to the choice of the underlay,
// until ctx ends.
func watchKernel(
	ctx context.Context, used func(link string) bool, reaches func(netip.Prefix) bool, changed func(),
) error {
	watch, err := kernel.OpenWatch(kernel.WatchFilter{
		Own:  func(link string) bool { return strings.HasPrefix(link, backend.LinkPrefix) },
		Used: used, Reaches: reaches,
	})
	if err != nil {
		return err
	}
	changed() // for changes before the subscription
	done := make(chan error, 1)
	go func() { done <- watch.Run(ctx) }()
	for {
		select {
		case <-watch.Changed():
			changed()
		case err := <-done:
			return err
		}
	}
}
