// Package programs finds the programs that tests start.
//
// Each is the one that an environment variable names, which `make test` sets, else the one on PATH, else the one that
// tools/get has built or unpacked earlier. Nothing is built here.
package programs

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// A Program is something that tools/get provides.
type Program struct {
	Name     string // of its file
	Variable string // the environment variable with its path
	Package  string // what tools/get calls it, "" for Name
	// Directories matches its directories in the cache of tools/get, "" stands for Name and a version.
	Directories string
	CacheOnly   bool // the one on PATH is of no use
}

// The programs of more than one package's tests.
var (
	Consul  = Program{Name: "consul", Variable: "LENO_TEST_CONSUL"}
	Etcd    = Program{Name: "etcd", Variable: "LENO_TEST_ETCD"}
	Etcdutl = Program{Name: "etcdutl", Variable: "LENO_TEST_ETCDUTL", Directories: "etcd-[0-9]*"}
	// OldEtcd is Debian's, which on many machines is older than Etcd.
	OldEtcd = Program{
		Name: "etcd", Variable: "LENO_TEST_ETCD_OLD", Package: "etcd-server", Directories: "etcd-server-*", CacheOnly: true,
	}
	KubeAPIServer  = Program{Name: "kube-apiserver", Variable: "LENO_TEST_KUBE_APISERVER"}
	Nomad          = Program{Name: "nomad", Variable: "LENO_TEST_NOMAD"}
	ConsulTemplate = Program{Name: "consul-template", Variable: "LENO_TEST_CONSUL_TEMPLATE"}
	// Prometheus has promtool in the same directory.
	Prometheus = Program{Name: "prometheus", Variable: "LENO_TEST_PROMETHEUS"}
	Nginx      = Program{Name: "nginx", Variable: "LENO_TEST_NGINX"}
	// Flannel is flanneld, which go build names after its module.
	Flannel = Program{Name: "flannel", Variable: "LENO_TEST_FLANNEL", CacheOnly: true}
	// CNITool has the reference plugins in the same directory.
	CNITool = Program{Name: "cnitool", Variable: "LENO_TEST_CNITOOL", Package: "cni", Directories: "cni-*"}
)

// Find returns the path of the program.
func (p Program) Find() (string, error) {
	if path := os.Getenv(p.Variable); path != "" {
		return path, nil
	}
	if !p.CacheOnly {
		if path, err := exec.LookPath(p.Name); err == nil {
			return path, nil
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	directories := cmp.Or(p.Directories, p.Name+"-[0-9]*")
	found, err := filepath.Glob(filepath.Join(cache, "leno-tools", directories, p.Name))
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", fmt.Errorf("no %s to test with: set %s to its path, or run `tools/get %s`, which provides it",
			p.Name, p.Variable, cmp.Or(p.Package, p.Name))
	}
	return found[len(found)-1], nil
}
