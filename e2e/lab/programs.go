package lab

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/lenonet/leno/internal/testkit/owned"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// FindConsul returns the path of a Consul binary: the one that LENO_TEST_CONSUL names (make test
// sets it), the one on PATH, or the one that `tools/get consul` has built.
func FindConsul() (string, error) { return programs.Consul.Find() }

// FindEtcd returns the path of an etcd binary: the one that LENO_TEST_ETCD names (make test sets
// it), the one on PATH, or the one that `tools/get etcd` has built.
func FindEtcd() (string, error) { return programs.Etcd.Find() }

// FindEtcdutl returns the path of an etcdutl binary, found in the same way with LENO_TEST_ETCDUTL.
func FindEtcdutl() (string, error) { return programs.Etcdutl.Find() }

// FindPrometheus returns the path of a Prometheus server with promtool in the same directory: the
// one that LENO_TEST_PROMETHEUS names (make test sets it), the one on PATH, or the one that
// `tools/get prometheus` unpacked.
func FindPrometheus() (string, error) { return programs.Prometheus.Find() }

// FindNginx returns the path of an nginx binary, found in the same way with LENO_TEST_NGINX.
func FindNginx() (string, error) { return programs.Nginx.Find() }

// FindNomad returns the path of a Nomad binary: the one that LENO_TEST_NOMAD names (make test sets
// it), the one on PATH, or the one that `tools/get nomad` has built.
func FindNomad() (string, error) { return programs.Nomad.Find() }

// FindConsulTemplate returns the path of a consul-template binary, found in the same way with
// LENO_TEST_CONSUL_TEMPLATE.
func FindConsulTemplate() (string, error) {
	return programs.ConsulTemplate.Find()
}

// FindCNI returns the directory of cnitool and the reference plugins bridge, ptp, host-local,
// portmap, firewall and loopback: the one that LENO_TEST_CNI names, or the one where `tools/get
// cni` has built them.
func FindCNI() (string, error) {
	if path := os.Getenv("LENO_TEST_CNI"); path != "" {
		return path, nil
	}
	tool, err := programs.CNITool.Find()
	if err != nil {
		return "", err
	}
	return filepath.Dir(tool), nil
}

// FindDebianRoot returns the path of a tar archive of a fresh Debian: the one that
// LENO_TEST_DEBIAN names (make test sets it), or the one that `tools/get debian-root`
// has made.
func FindDebianRoot() (string, error) {
	if path := os.Getenv("LENO_TEST_DEBIAN"); path != "" {
		return path, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	made, err := filepath.Glob(filepath.Join(cache, "leno-tools", "debian-root-*", "root.tar"))
	if err != nil {
		return "", err
	}
	if len(made) == 0 {
		return "", errors.New("no Debian in LENO_TEST_DEBIAN or from `tools/get debian-root`")
	}
	return made[len(made)-1], nil
}

// FindLeno returns the path of a leno binary: the one that LENO_TEST_LENO names (make test sets
// it), or one that it builds into dir. To build, it must be called from inside the module.
func FindLeno(ctx context.Context, dir string) (string, error) {
	if path := os.Getenv("LENO_TEST_LENO"); path != "" {
		return path, nil
	}
	path := filepath.Join(dir, "leno")
	if _, err := run(ctx, "", "go", "build", "-o", path, "github.com/lenonet/leno"); err != nil {
		return "", err
	}
	return path, nil
}

// FindAgent returns the path of the leno binary that one host of a lab runs as its agent:
// the one that LENO_TEST_AGENT names (make test sets it, with the race detector), else
// leno.
func FindAgent(leno string) string { return cmp.Or(os.Getenv("LENO_TEST_AGENT"), leno) }

// WithLeno calls run with the path of a leno binary, as FindLeno returns it, and returns run's exit
// code. A binary that it built is removed when run has returned. Without a binary it prints the
// reason to standard error and returns 1. More of a package's tests run at once than there are CPUs,
// because they wait for other programs during three quarters of their time.
func WithLeno(run func(leno string) int) int {
	flag.Parse()
	if lanes := flag.Lookup("test.parallel"); lanes != nil && lanes.Value.String() == lanes.DefValue {
		if err := lanes.Value.Set(strconv.Itoa(runtime.GOMAXPROCS(0) * 5 / 2)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if os.Geteuid() == 0 {
		if err := Sweep(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "what a killed run left behind:", err)
		}
	}
	dir, err := owned.Make(programDirectory(randomDigits()))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := dir.Remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	leno, err := FindLeno(context.Background(), dir.Path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return run(leno)
}

// programDirectory returns the directory of a program that WithLeno builds.
func programDirectory(id string) string { return directory("program-" + id) }

// RunWithLeno runs the tests of a package that need root. As root it sets leno to the path of a
// leno binary, as WithLeno provides it. For another user it leaves leno empty, and each test
// reports that it needs root.
func RunWithLeno(leno *string, run func() int) int {
	if os.Geteuid() != 0 {
		return run()
	}
	return WithLeno(func(path string) int {
		*leno = path
		return run()
	})
}
