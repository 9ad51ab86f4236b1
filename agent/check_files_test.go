package agent

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/lenonet/leno/agent/config"
)

// wireguardKeys returns a backend with the files as its options.
func wireguardKeys(key, psk string) *config.Backend {
	return &config.Backend{Type: "wireguard", Options: fmt.Appendf(nil, `{"key_file":%q,"psk_file":%q}`, key, psk)}
}

// TestCheckFiles: a file that an agent could not use is found before the agent starts, and is reported by the setting
// that names it. A file that the agent creates itself need not exist.
func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, data, 0o600))
		return path
	}
	ours := newAuthority(t, "ours")
	cert, key := ours.issue("first")
	_, other := ours.issue("second")
	pipe := filepath.Join(dir, "pipe")
	must(t, syscall.Mkfifo(pipe, 0o600))
	wgKey := write("wg.key", []byte("YAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n"))
	plain, ca := write("plain", []byte("x")), write("ca.pem", ours.pem())
	pair := config.TLS{CertFile: write("cert.pem", cert), KeyFile: write("key.pem", key), CAFile: ca}
	mixed := config.TLS{CertFile: pair.CertFile, KeyFile: write("other.pem", other)}
	for _, tt := range []struct {
		name   string
		change func(c *config.Config)
		wrong  map[string]string // words of the error, by setting
	}{
		{"nothing is there yet", func(*config.Config) {}, nil},
		{"everything is there", func(c *config.Config) {
			c.Consul.TLS, c.HTTP.TLS, c.Consul.TokenFile = pair, pair, write("token", []byte("secret\n"))
			c.DataDir, c.Log.File, c.Networks[0].SubnetFile = dir, plain, plain
		}, nil},
		{"missing", func(c *config.Config) {
			c.Consul.TokenFile, c.HTTP.TLS = dir+"/none", config.TLS{CertFile: dir + "/no.crt", KeyFile: dir + "/no.key"}
		}, map[string]string{"consul.token_file": "none: no such file", "http.tls.cert_file": "no.crt: no such file", "http.tls.key_file": "no.key: no such file"}},
		{"a key of another certificate", func(c *config.Config) { c.Consul.TLS, c.HTTP.TLS = mixed, mixed },
			map[string]string{"consul.tls.key_file": "does not match cert_file " + pair.CertFile, "http.tls.key_file": "does not match public key"}},
		{"of another kind", func(c *config.Config) {
			c.Consul.TLS.CAFile, c.HTTP.TLS.CAFile, c.Consul.TokenFile = plain, pipe, pipe
			c.DataDir, c.Log.File, c.Networks[0].SubnetFile, c.HTTP.Address = plain, dir, dir, "unix://"+plain
		}, map[string]string{"consul.tls.ca_file": "no certificate", "http.tls.ca_file": "not a regular file", "consul.token_file": "not a regular file",
			"data_dir": "is not a directory", "log_file": "is not a regular file", "network.n.subnet_file": "is not a regular file", "http.address": "is not a socket"}},
		{"no token", func(c *config.Config) { c.Consul.TokenFile = write("token", []byte(" \n")) }, map[string]string{"consul.token_file": "it is empty"}},
		{"etcd", func(c *config.Config) {
			c.Etcd.TLS, c.Etcd.PasswordFile = pair, write("password", []byte(" with spaces \n"))
		}, nil},
		{"no password", func(c *config.Config) { c.Etcd.PasswordFile = write("no-password", []byte("\n")) },
			map[string]string{"etcd.password_file": "no password in it"}},
		{"files of etcd that cannot be used", func(c *config.Config) {
			c.Etcd.TLS, c.Etcd.PasswordFile = mixed, write("two-passwords", []byte("one\ntwo\n"))
		}, map[string]string{"etcd.tls.key_file": "does not match cert_file", "etcd.password_file": "more than one line"}},
		{"no JWT", func(c *config.Config) { c.Consul.Login.BearerTokenFile = write("jwt", nil) },
			map[string]string{"consul.login.bearer_token_file": "it is empty"}},
		{"keys of WireGuard", func(c *config.Config) {
			c.Networks[0].Backend = wireguardKeys(wgKey, wgKey)
		}, nil},
		{"leno's own key of WireGuard", func(c *config.Config) { c.Networks[0].Backend = wireguardKeys("wireguard.key", "") }, nil},
		{"keys of WireGuard that cannot be used", func(c *config.Config) {
			c.Networks[0].Backend = wireguardKeys(dir+"/none", plain)
		}, map[string]string{"network.n.backend.key_file": "none: no such file", "network.n.backend.psk_file": "is not 32 bytes in base64"}},
		{"Kubernetes", func(c *config.Config) {
			c.Kubernetes.Kubeconfig = write("kubeconfig", []byte("apiVersion: v1\nkind: Config\ncurrent-context: a\n"+
				"contexts: [{name: a, context: {cluster: a, user: a}}]\nclusters: [{name: a, cluster: {server: 'https://a'}}]\n"+
				"users: [{name: a, user: {}}]\n"))
			c.Kubernetes.NetConf = write("net-conf.json", []byte(`{"Network": "10.5.0.0/16"}`))
		}, nil},
		{"files of Kubernetes that are missing", func(c *config.Config) {
			c.Kubernetes.Kubeconfig, c.Kubernetes.NetConf = dir+"/none", dir+"/no.json"
		}, map[string]string{"kubernetes.kubeconfig": "none: no such file", "kubernetes.net_conf": "no.json: no such file"}},
		{"files of Kubernetes that cannot be used", func(c *config.Config) { c.Kubernetes.Kubeconfig, c.Kubernetes.NetConf = plain, plain },
			map[string]string{"kubernetes.kubeconfig": plain, "kubernetes.net_conf": plain}},
		{"two tokens", func(c *config.Config) { c.Consul.TokenFile = write("token", []byte("a b")) }, map[string]string{"consul.token_file": "more in it"}},
	} {
		c := config.Defaults()
		c.DataDir, c.HTTP.Address = filepath.Join(dir, "new/data"), "unix://"+filepath.Join(dir, "new.sock")
		c.Networks = []config.Network{{Name: "n", SubnetFile: filepath.Join(dir, "new/n.env")}}
		tt.change(&c)
		wrong := CheckFiles(t.Context(), c)
		if !slices.Equal(slices.Sorted(maps.Keys(wrong)), slices.Sorted(maps.Keys(tt.wrong))) {
			t.Errorf("%s: %v", tt.name, wrong)
			continue
		}
		for setting, words := range tt.wrong {
			if !strings.Contains(wrong[setting].Error(), words) {
				t.Errorf("%s: %s: %v, want %q", tt.name, setting, wrong[setting], words)
			}
		}
	}
}
