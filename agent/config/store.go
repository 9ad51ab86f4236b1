package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/lenonet/leno/agent/files"
)

// The kinds of stores.
const (
	StoreConsul     = "consul"
	StoreEtcd       = "etcd"
	StoreKubernetes = "kubernetes"
	StoreMemory     = "memory" // of a development agent
)

// Store returns the kind of the store: StoreMemory with -dev, StoreEtcd with an etcd block, StoreKubernetes with a
// kubernetes block, StoreConsul otherwise.
func (c Config) Store() string {
	switch {
	case c.Dev:
		return StoreMemory
	case len(c.Etcd.Endpoints) > 0:
		return StoreEtcd
	case c.Kubernetes.Network != "":
		return StoreKubernetes
	}
	return StoreConsul
}

// StoreName returns the name of the store for messages, "Consul", "etcd" or "Kubernetes". A development agent, which
// has no store, gets the texts for Consul.
func (c Config) StoreName() string { return StoreName(c.Store()) }

// StoreName returns the name of a kind of store for messages, "Consul", "etcd" or "Kubernetes".
func StoreName(kind string) string {
	switch kind {
	case StoreEtcd:
		return "etcd"
	case StoreKubernetes:
		return "Kubernetes"
	}
	return "Consul"
}

// StoreLocation returns what selects the records in the store, such as "etcd prefix=/coreos.com/network
// network=default", and "" for a development agent. Two clusters may have the same location, since a cluster may be
// replaced by another one with its data.
func (c Config) StoreLocation() string {
	var options [][2]string
	switch c.Store() {
	case StoreConsul:
		options = [][2]string{{"kv_prefix", c.Consul.KVPrefix}, {"datacenter", c.Consul.Datacenter},
			{"namespace", c.Consul.Namespace}, {"partition", c.Consul.Partition}}
	case StoreEtcd:
		options = [][2]string{{"prefix", c.Etcd.Prefix}, {"network", c.Etcd.Network}}
	case StoreKubernetes:
		option, value := c.Kubernetes.NetConfSource()
		options = [][2]string{{"network", c.Kubernetes.Network}, {option, value},
			{"annotation_prefix", c.Kubernetes.AnnotationPrefix}}
	default:
		return ""
	}
	out := c.Store()
	for _, o := range options {
		if name, value := o[0], o[1]; value != "" {
			out += " " + name + "=" + value
		}
	}
	return out
}

// ServerAddress returns the address of Consul: Address, or else that of the environment or the default.
func (c Consul) ServerAddress() string {
	return cmp.Or(c.Address, os.Getenv("CONSUL_HTTP_ADDR"), "127.0.0.1:8500")
}

// ConfigMapKey splits ConfigMap into its parts. The key is net-conf.json unless the option names another one. All parts
// are "" if the option is not set.
func (k Kubernetes) ConfigMapKey() (namespace, name, key string) {
	if k.ConfigMap == "" {
		return "", "", ""
	}
	namespace, name, _ = strings.Cut(k.ConfigMap, "/")
	name, key, hasKey := strings.Cut(name, "/")
	if !hasKey {
		key = "net-conf.json"
	}
	return namespace, name, key
}

// NetConfSource returns the option that says where flannel's configuration is, "net_conf" or "config_map", and its
// value.
func (k Kubernetes) NetConfSource() (option, value string) {
	if k.ConfigMap != "" {
		return "config_map", k.ConfigMap
	}
	return "net_conf", k.NetConf
}

// ReadPassword returns the password of the user: Password, or the content of PasswordFile without the line break at its
// end. It returns "" if neither is set. The error names the file, and never shows what is in it. ReadPassword gives up
// on a file that blocks when ctx ends.
func (e Etcd) ReadPassword(ctx context.Context) (string, error) {
	if e.PasswordFile == "" {
		return e.Password, nil
	}
	data, err := files.Read(ctx, e.PasswordFile)
	if err != nil {
		return "", err
	}
	password, err := parsePassword(string(data))
	if err != nil {
		return "", fmt.Errorf("%s: %w", e.PasswordFile, err)
	}
	return password, nil
}

// parsePassword accepts one line. Other white space may belong to the password.
func parsePassword(text string) (string, error) {
	password := strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r")
	switch {
	case password == "":
		return "", errors.New("no password in it")
	case strings.ContainsAny(password, "\r\n"):
		return "", errors.New("more than one line in it, a password has one")
	}
	return password, checkPassword(password)
}
