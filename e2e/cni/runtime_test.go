// Package cni tests leno-cni as container runtimes use it: the real binary next to the reference
// plugins, called by the specification's own library and by cnitool, on hosts with real agents and
// real packets.
package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/lenonet/leno/e2e/lab"
)

// binary is the path of the leno under test, plugins the directory of the reference plugins.
var binary, plugins string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if os.Geteuid() != 0 {
			return m.Run() // every test reports that it needs root
		}
		dir, err := lab.FindCNI()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		plugins = dir
		return lab.WithLeno(func(leno string) int {
			binary = leno
			return m.Run()
		})
	}())
}

// A site is a lab with a container runtime on each host.
type site struct {
	*lab.Lab
	t        *testing.T
	ctx      context.Context
	runtimes []*runtime
	count    atomic.Int64 // containers created so far
}

func newSite(t *testing.T, o lab.Options) *site {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	t.Cleanup(cancel)
	o.Leno, o.Name = binary, "i"
	l, err := lab.New(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{Lab: l, t: t, ctx: ctx}
	t.Cleanup(func() {
		if t.Failed() {
			s.tell()
		}
		if err := l.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	for _, h := range l.Hosts {
		s.runtimes = append(s.runtimes, newRuntime(t, ctx, h))
	}
	return s
}

// tell prints the agents' output, for a failed test.
func (s *site) tell() {
	for _, h := range s.Hosts {
		if p := h.Agent(); p != nil {
			lines := strings.Split(strings.TrimSpace(p.Output()), "\n")
			s.t.Logf("agent of %s:\n%s", h.Name, strings.Join(lines[max(0, len(lines)-30):], "\n"))
		}
	}
}

// A runtime is a container runtime on a host. It has its own /run and /var/lib, as if the host were
// a machine.
type runtime struct {
	*lab.Host
	t    *testing.T
	ctx  context.Context
	dir  string // directory of the host's own files
	path string // CNI_PATH
	cni  *libcni.CNIConfig
}

func newRuntime(t *testing.T, ctx context.Context, h *lab.Host) *runtime {
	t.Helper()
	r := &runtime{Host: h, t: t, ctx: ctx, dir: filepath.Join(h.Dir, "machine"), path: filepath.Join(h.Dir, "cni-bin")}
	for _, dir := range []string{"run/netns", "run/leno", "var-lib", "conf"} {
		must(t, os.MkdirAll(filepath.Join(r.dir, dir), 0o755))
	}
	must(t, os.Mkdir(r.path, 0o755))
	for _, name := range []string{"bridge", "ptp", "host-local", "portmap", "loopback", "firewall"} {
		must(t, os.Symlink(filepath.Join(plugins, name), filepath.Join(r.path, name)))
	}
	must(t, os.Symlink(binary, filepath.Join(r.path, "leno-cni")))
	must(t, os.Symlink(binary, filepath.Join(r.path, "leno")))
	r.cni = r.withPath(r.path)
	return r
}

// withPath returns the runtime with plugins from other directories, searched in order.
func (r *runtime) withPath(dirs ...string) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(dirs, filepath.Join(r.dir, "cache"), program{&version.PluginDecoder{}, r})
}

// withoutMemory returns the runtime after a crash that lost what libcni had stored.
func (r *runtime) withoutMemory(t *testing.T) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{r.path}, t.TempDir(), program{&version.PluginDecoder{}, r})
}

// view is a shell command that runs its arguments with the host's own /run and /var/lib.
const view = `
mount --bind "$1/var-lib" /var/lib
mount --rbind /run/netns "$1/run/netns"
mount --rbind "$1/run" /run
stdin=$2
shift 2
exec "$@" <"$stdin"`

// machine returns a command line that runs a command in the view, with a file as standard input.
func (r *runtime) machine(stdin string, command ...string) []string {
	return append([]string{"unshare", "--mount", "sh", "-euc", view, "sh", r.dir, stdin}, command...)
}

// program runs plugins on the host for libcni.
type program struct {
	*version.PluginDecoder
	r *runtime
}

var _ invoke.Exec = program{}

func (p program) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// ExecPlugin runs a plugin as the specification requires and checks that its standard output is
// empty or one JSON value.
func (p program) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	file, err := os.CreateTemp(p.r.dir, "stdin")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(stdin)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	command := []string{"env"}
	for _, entry := range environ {
		if strings.HasPrefix(entry, "CNI_") {
			command = append(command, entry)
		}
	}
	out, err := p.r.Exec(ctx, p.r.machine(file.Name(), append(command, path)...)...)
	if out = strings.TrimSpace(out); out != "" && !json.Valid([]byte(out)) {
		return nil, fmt.Errorf("on standard output is not JSON alone: %s", out)
	}
	if err == nil {
		return []byte(out), nil
	}
	e := new(types.Error)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || json.Unmarshal([]byte(out), e) != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	var has struct {
		CNIVersion string `json:"cniVersion"`
	}
	if json.Unmarshal([]byte(out), &has) != nil || has.CNIVersion == "" {
		return nil, fmt.Errorf("an error without cniVersion: %s", out)
	}
	return nil, e
}

// A container is a namespace that a runtime has created.
type container struct {
	*lab.Namespace
	r    *runtime
	id   string
	dev  string // name of the interface in the container
	list *libcni.NetworkConfigList

	result *current.Result // result of ADD
	caps   map[string]any
	args   [][2]string
}

func (s *site) container(t *testing.T, r *runtime, conf string) *container {
	t.Helper()
	ns, err := s.AddNamespace(s.ctx, fmt.Sprintf("%s-c%d", r.Name, s.count.Add(1)))
	must(t, err)
	return &container{Namespace: ns, r: r, id: ns.Name, dev: "eth0", list: list(t, conf)}
}

// list parses a configuration list.
func list(t *testing.T, text string) *libcni.NetworkConfigList {
	t.Helper()
	out, err := libcni.ConfListFromBytes([]byte(text))
	must(t, err)
	return out
}

func (c *container) with() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: c.id, NetNS: c.Path(), IfName: c.dev, Args: c.args, CapabilityArgs: c.caps}
}

func (c *container) add() error { return c.addWith(c.r.cni) }

func (c *container) addWith(cni *libcni.CNIConfig) error {
	answer, err := cni.AddNetworkList(c.r.ctx, c.list, c.with())
	if err != nil {
		return err
	}
	c.result, err = current.NewResultFromResult(answer)
	return err
}

func (c *container) del() error   { return c.r.cni.DelNetworkList(c.r.ctx, c.list, c.with()) }
func (c *container) check() error { return c.r.cni.CheckNetworkList(c.r.ctx, c.list, c.with()) }

// addrs returns the addresses that ADD assigned.
func (c *container) addrs() (out []netip.Addr) {
	for _, ip := range c.result.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		out = append(out, a.Unmap())
	}
	return out
}

// added returns a container that has its interface.
func (s *site) added(t *testing.T, r *runtime, conf string) *container {
	t.Helper()
	c := s.container(t, r, conf)
	must(t, c.add())
	return c
}

// gc runs the runtime's GC with the given containers as the valid ones.
func (r *runtime) gc(cni *libcni.CNIConfig, conf *libcni.NetworkConfigList, valid ...*container) error {
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, c := range valid {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: c.id, IfName: "eth0"})
	}
	return cni.GCNetworkList(r.ctx, conf, args)
}

// store returns the addresses that are in use in a network.
func (r *runtime) store(t *testing.T, dataDir, network string) (out []string) {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(r.dir, dataDir, "addresses", network))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, err := netip.ParseAddr(f.Name()); err == nil {
			out = append(out, f.Name())
		}
	}
	return out
}

// reaches blocks until a container has received an answer from every address of the other one.
func (c *container) reaches(t *testing.T, to *container) {
	t.Helper()
	for _, addr := range to.addrs() {
		must(t, lab.WaitFor(c.r.ctx, fmt.Sprintf("%s to reach %s", c.Name, addr), func(ctx context.Context) error {
			p, err := c.Ping(ctx, addr, lab.PingOptions{})
			if err == nil && p.Received == 0 {
				err = fmt.Errorf("%s does not answer", addr)
			}
			return err
		}))
	}
}

// fails checks that an error has the given code of the specification and contains the words.
func fails(t *testing.T, err error, code uint, words ...string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("%#v is not of code %d", err, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(e.Msg, w) {
			t.Errorf("%q lacks %q", e.Msg, w)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// conf returns a network configuration list with one plugin.
func conf(name, more string) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"cniVersion":"1.1.0","name":%q,"plugins":[{"type":"leno-cni"%s}]}`, name, more)
	return b.String()
}
