package config

import "testing"

// TestStoreLocation: each option that selects other records changes the location, and an address does not.
func TestStoreLocation(t *testing.T) {
	t.Parallel()
	consul, dev := Defaults(), Defaults()
	dev.Dev = true
	other := consul
	other.Consul.Address = "192.0.2.1:8500"
	datacenter := consul
	datacenter.Consul.KVPrefix, datacenter.Consul.Datacenter = "a/b", "dc2"
	enterprise := consul
	enterprise.Consul.Namespace, enterprise.Consul.Partition = "ns", "p"
	etcd := consul
	etcd.Etcd = Etcd{Endpoints: []string{"192.0.2.1:2379"}, Prefix: "/coreos.com/network", Network: "default"}
	file, object := consul, consul
	file.Kubernetes = Kubernetes{Kubeconfig: "/k", Network: "default", NetConf: "/n", AnnotationPrefix: "example.com"}
	object.Kubernetes = Kubernetes{Network: "default", ConfigMap: "a/b", AnnotationPrefix: "example.com"}
	for _, tt := range []struct {
		config Config
		want   string
	}{
		{consul, "consul kv_prefix=leno"},
		{other, "consul kv_prefix=leno"},
		{datacenter, "consul kv_prefix=a/b datacenter=dc2"},
		{enterprise, "consul kv_prefix=leno namespace=ns partition=p"},
		{etcd, "etcd prefix=/coreos.com/network network=default"},
		{file, "kubernetes network=default net_conf=/n annotation_prefix=example.com"},
		{object, "kubernetes network=default config_map=a/b annotation_prefix=example.com"},
		{dev, ""},
	} {
		if got := tt.config.StoreLocation(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
