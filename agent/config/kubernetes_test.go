package config

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// defaultKubernetes returns the kubernetes block with its documented defaults.
func defaultKubernetes() Kubernetes {
	return Kubernetes{
		Network:          "default",
		NetConf:          "/etc/kube-flannel/net-conf.json",
		AnnotationPrefix: "flannel.alpha.coreos.com",
	}
}

// TestKubernetes reads kubernetes blocks of several files.
func TestKubernetes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  Kubernetes
		store string
	}{
		{"no block", map[string]string{"a.hcl": `log_level = "INFO"`}, Kubernetes{}, StoreConsul},
		{"an empty block", map[string]string{"a.hcl": "kubernetes {}"}, defaultKubernetes(), StoreKubernetes},
		{"an empty block in JSON", map[string]string{"a.json": `{"kubernetes": {}}`}, defaultKubernetes(), StoreKubernetes},
		{"merged", map[string]string{
			"a.hcl":  "kubernetes {\n kubeconfig = \"/k\"\n network = \"red\"\n}",
			"b.json": `{"kubernetes": {"node_name": "a.example.com", "network": "blue", "net_conf": "/n"}}`,
			"c.hcl":  "kubernetes {\n annotation_prefix = \"example.com\"\n}",
		}, Kubernetes{
			Kubeconfig:       "/k",
			NodeName:         "a.example.com",
			Network:          "blue",
			NetConf:          "/n",
			AnnotationPrefix: "example.com",
		}, StoreKubernetes},
		{"a ConfigMap", map[string]string{"a.hcl": "kubernetes {\n config_map = \"kube-flannel/kube-flannel-cfg\"\n}"},
			Kubernetes{
				Network:          "default",
				ConfigMap:        "kube-flannel/kube-flannel-cfg",
				AnnotationPrefix: "flannel.alpha.coreos.com",
			}, StoreKubernetes},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, tt.files)
			got, err := Load([]string{dir}, registryOptions())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got.Kubernetes); diff != "" || got.Store() != tt.store {
				t.Errorf("store %s (-want +got):\n%s", got.Store(), diff)
			}
			if tt.store != StoreConsul && !reflect.DeepEqual(got.Consul, Consul{}) {
				t.Errorf("Consul is set too: %+v", got.Consul)
			}
		})
	}
}

// TestConfigMapKey splits the option config_map, whose default key is flannel's.
func TestConfigMapKey(t *testing.T) {
	for option, want := range map[string][3]string{
		"":                                {},
		"kube-flannel/kube-flannel-cfg":   {"kube-flannel", "kube-flannel-cfg", "net-conf.json"},
		"kube-flannel/flannel/other.json": {"kube-flannel", "flannel", "other.json"},
	} {
		var got [3]string
		got[0], got[1], got[2] = Kubernetes{ConfigMap: option}.ConfigMapKey()
		if got != want {
			t.Errorf("%q: %q, want %q", option, got, want)
		}
	}
}
