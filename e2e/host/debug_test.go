package host

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// TestDebugBundle checks that a real agent's bundle is complete and contains neither the agent's
// token nor the user's.
func TestDebugBundle(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 1})
	h := w.Hosts[0]
	const agents, mine = "5ecret-0f-the-agent", "5ecret-0f-an-operator"
	config := strings.Replace(h.Config("enable_debug = true\n"+world.ShortLease, h.Network("default", world.Plan("vxlan"))), "consul {\n", "consul {\n  token = \""+agents+"\"\n", 1)
	w.Must(h.StartAgent(config))
	w.Must(h.WaitReady(w.Ctx))
	// The metrics shown are those of the last complete interval, which may have ended before there was a lease.
	w.Must(lab.WaitFor(w.Ctx, "the metrics of the lease", func(ctx context.Context) error {
		_, body, err := h.Get(ctx, "/v1/agent/metrics")
		if err == nil && !strings.Contains(body, "lease") {
			err = errors.New("there are none")
		}
		return err
	}))
	path := filepath.Join(h.Dir, "bundle.tar.gz")
	out, err := h.Leno(w.Ctx, "debug", "-duration=5s", "-interval=500ms", "-token="+mine, "-output="+path)
	w.Must(err)
	if !strings.HasSuffix(out, path+"\n") {
		t.Errorf("says %q", out)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	files := w.unpacked(path)
	var index struct {
		Files []struct{ File, Error string }
	}
	w.Must(json.Unmarshal([]byte(files["index.json"]), &index))
	for _, f := range index.Files {
		// Files that this distribution does not have are no fault of the bundle.
		if f.Error != "" && !strings.HasPrefix(f.File, "kernel/") {
			t.Errorf("%s: %s", f.File, f.Error)
		}
	}
	subnet := w.Subnet(h, "default").String()
	for file, wants := range map[string][]string{
		"agent/self.json":              {h.Name},
		"agent/config.json":            {`"consul.token","value":"set"`, `network.default.ipv4`},
		"agent/log.txt":                {"[DEBUG]"},
		"networks.json":                {subnet, `"running"`},
		"networks/default/leases.json": {subnet},
		"networks/default/peers.json":  {`"peers":[]`},
		"events.json":                  {`"lease"`},
		"health.jsonl":                 {"passing"},
		"metrics.jsonl":                {"lease"},
		"metrics.prom":                 {"leno_"},
		"profiles/goroutines.txt":      {"goroutine 1"},
		"profiles/heap.pprof":          {""},
		"profiles/processor.pprof":     {""},
		"kernel/links.txt":             {"leno-default", "vxlan id 1"},
		"kernel/routes4.txt":           {"unreachable 10.5.0.0/16", "proto 108"},
		"kernel/rules4.txt":            {"lookup local"},
		"kernel/sysctl.txt":            {"/proc/sys/net/ipv4/ip_forward = 1"},
		"host/system.txt":              {"Linux version"},
	} {
		text, there := files[file]
		for _, want := range wants {
			if !there || !strings.Contains(text, want) {
				t.Errorf("%s lacks %q:\n%.600s", file, want, text)
			}
		}
	}
	for file, text := range files {
		if strings.Contains(text, agents) || strings.Contains(text, mine) {
			t.Errorf("a token is in %s", file)
		}
	}
	if _, err := h.Leno(w.Ctx, "debug", "-duration=1s", "-output="+path); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("a file that is there: %v", err)
	}
}

// unpacked returns the files of a bundle by their names below its folder.
func (w *testWorld) unpacked(path string) map[string]string {
	w.T.Helper()
	file, err := os.Open(path)
	w.Must(err)
	defer file.Close()
	zipped, err := gzip.NewReader(file)
	w.Must(err)
	files := map[string]string{}
	for archive := tar.NewReader(zipped); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		w.Must(err)
		text, err := io.ReadAll(archive)
		w.Must(err)
		_, name, _ := strings.Cut(head.Name, "/")
		files[name] = string(text)
		if head.Mode != 0o600 {
			w.T.Errorf("%s has mode %o", head.Name, head.Mode)
		}
	}
}
