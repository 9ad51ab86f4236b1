package command

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

// unpacked reads a bundle: its index, and the files below its folder.
func unpacked(t *testing.T, archive io.Reader) (debugIndex, map[string]string) {
	t.Helper()
	zipped, err := gzip.NewReader(archive)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	var folder string
	for reader := tar.NewReader(zipped); ; {
		head, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		if head.Mode != 0o600 || head.Typeflag != tar.TypeReg || head.Name != path.Clean(head.Name) || strings.HasPrefix(head.Name, ".") || strings.HasPrefix(head.Name, "/") {
			t.Errorf("%s has mode %o", head.Name, head.Mode)
		}
		first, rest, _ := strings.Cut(head.Name, "/")
		if folder == "" {
			folder = first
		}
		if first != folder {
			t.Errorf("%s is not below %s", head.Name, folder)
		}
		files[rest] = string(text)
	}
	var index debugIndex
	if err := json.Unmarshal([]byte(files["index.json"]), &index); err != nil {
		t.Fatal(err)
	}
	return index, files
}

func opened(t *testing.T, name string) (debugIndex, map[string]string) {
	t.Helper()
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	return unpacked(t, file)
}

func TestDebug(t *testing.T) {
	const token = "5ecret-token"
	t.Chdir(t.TempDir())
	f := newFakeAgent(t)
	f.networks[1].Local.State = "another program wrote " + token
	f.leases[0].Node = "host-a\x1b[2J"
	w := world{env: map[string]string{"LENO_ADDRESS": f.url, "LENO_TOKEN": token}}
	// Long enough for a busy machine to respond that it has no log.
	line := strings.Fields("debug -duration=1s -interval=100ms")
	got := w.run(line...)
	name := "leno-debug-host-a-20260102T150405Z"
	if whole, err := filepath.Abs(name + ".tar.gz"); err != nil || got.code != cli.ExitDone || got.stdout != whole+"\n" {
		t.Fatalf("%+v, %v", got, err)
	}
	index, files := opened(t, name+".tar.gz")
	if index.Node != "host-a" || index.Agent != f.url || index.Ended != "" || index.Kernel != "" {
		t.Errorf("%+v", index)
	}
	for _, file := range []string{"agent/self.json", "networks.json", "networks/default/leases.json", "networks/default/reservations.json",
		"networks/default/peers.json", "health.jsonl", "kernel/sysctl.txt", "host/system.txt"} {
		if files[file] == "" {
			t.Errorf("no file %s", file)
		}
	}
	errs := map[string]string{}
	for _, taken := range index.Files {
		errs[taken.File] = taken.Error
		if taken.Bytes != len(files[taken.File]) {
			t.Errorf("%s has %d bytes, not %d", taken.File, len(files[taken.File]), taken.Bytes)
		}
	}
	if !strings.Contains(errs["profiles/heap.pprof"], "enable_debug") || errs["agent/self.json"] != "" || errs["events.json"] != "" || errs["agent/log.txt"] == "" {
		t.Errorf("%q", errs)
	}
	for file, text := range files {
		if strings.Contains(text, token) {
			t.Errorf("the token is in %s", file)
		}
	}
	if !strings.Contains(files["networks.json"], "another program wrote (secret)") {
		t.Errorf("%s", files["networks.json"])
	}
	fits80(t, got.stderr)

	before, err := os.ReadFile(name + ".tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	if got := w.run(line...); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "already exists") {
		t.Errorf("%+v", got)
	}
	if after, err := os.ReadFile(name + ".tar.gz"); err != nil || string(after) != string(before) {
		t.Errorf("the file was changed, %v", err)
	}
}

// A bundle on standard output is only the archive, even if the agent does not respond. It covers
// one network only when that is requested.
func TestDebugOutput(t *testing.T) {
	f := newFakeAgent(t)
	w := world{env: map[string]string{"LENO_ADDRESS": f.url}}
	got := w.run(strings.Fields("debug -duration=10ms -network=blue -network=../x -output=-")...)
	index, files := unpacked(t, strings.NewReader(got.stdout))
	if got.code != cli.ExitDone || files["networks/blue/leases.json"] == "" || files["networks/default/leases.json"] != "" {
		t.Errorf("%d %+v", got.code, index)
	}
	f.set(func() { f.down = true })
	got = w.run(strings.Fields("debug -duration=10ms -output=-")...)
	index, files = unpacked(t, strings.NewReader(got.stdout))
	if got.code != cli.ExitDone || index.Node != "" || files["host/system.txt"] == "" || !strings.Contains(files["index.json"], "it is away") {
		t.Errorf("%d %+v", got.code, index)
	}
	w.terminal = true
	for _, args := range []string{"-output=-", "-duration=0s", "-duration=2h", "-interval=1ms", "-network="} {
		if got := w.run("debug", args); got.code != cli.ExitUsage || got.stdout != "" {
			t.Errorf("%s: %+v", args, got)
		}
	}
	if got := w.run("debug", "-output="+filepath.Join(t.TempDir(), "none", "x")); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "-output") {
		t.Errorf("%+v", got)
	}
}

// Kernel tables are captured only if they are of the agent's kernel, wherever its address points.
func TestDebugKernel(t *testing.T) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	namespace, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	here := strings.TrimSpace(string(boot))
	f := newFakeAgent(t)
	for _, tt := range []struct{ name, address, boot, namespace, says string }{
		{"here", f.url, here, namespace, ""},
		{"a forwarded port", f.url, "6f1c9d1e-0000-4000-8000-000000000009", namespace, "another host"},
		{"a container's port", f.url, here, "net:[1]", "another network namespace"},
		{"an older agent here", f.url, "", "", ""},
		{"none, elsewhere", "http://192.0.2.1.invalid:5366", "", "", "on another host"},
	} {
		f.boot, f.namespace = tt.boot, tt.namespace
		got := world{env: map[string]string{"LENO_ADDRESS": tt.address}}.run("debug", "-duration=10ms", "-output=-")
		index, files := unpacked(t, strings.NewReader(got.stdout))
		if _, taken := files["host/system.txt"]; taken != (tt.says == "") || !strings.Contains(index.Kernel, tt.says) || (index.Kernel == "") != taken {
			t.Errorf("%s: %t, %q", tt.name, taken, index.Kernel)
		}
	}
	address := func(name string) string { return map[string]string{"LENO_ADDRESS": "192.0.2.1:5366"}[name] }
	d := debugCommand{agent: cli.NewAgentFlags(cli.Meta{Getenv: address})}
	if why := d.kernelMismatch(api.Self{BootID: here, NetworkNamespace: namespace}); why != "" {
		t.Errorf("an address of this host's: %s", why)
	}
}

// Ctrl-C keeps what has been captured.
func TestDebugInterrupted(t *testing.T) {
	f := newFakeAgent(t)
	name := filepath.Join(t.TempDir(), "x.tar.gz")
	_, stderr, end := watching(t, f, false, "debug", "-duration=1h", "-interval=100ms", "-output="+name)
	stderr.says(t, "Capturing for 1h")
	for health := false; !health; time.Sleep(5 * time.Millisecond) { // a second request follows the first response
		f.mu.Lock()
		health = f.looks > 1
		f.mu.Unlock()
	}
	if code := end(); code != cli.ExitDone {
		t.Errorf("exit %d: %s", code, stderr)
	}
	index, files := opened(t, name)
	var sample struct {
		Answer api.Health `json:"answer"`
	}
	first, _, _ := strings.Cut(files["health.jsonl"], "\n")
	if err := json.Unmarshal([]byte(first), &sample); err != nil || sample.Answer.Status != api.Passing {
		t.Errorf("%v, %q", err, files["health.jsonl"])
	}
	if index.Ended == "" || index.Node != "host-a" {
		t.Errorf("%+v", index)
	}
}
