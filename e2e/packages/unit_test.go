package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lenonet/leno/e2e/docpages"
)

// TestUnit compares the unit with the agent's behaviour: it may wait for Consul without a limit,
// stopping it removes none of the host's state, and it is restarted unless its configuration
// prevents a start.
func TestUnit(t *testing.T) {
	got := docpages.Unit(t, "leno.service")
	for key, want := range map[string]string{
		"Type": "notify", "Restart": "always", "TimeoutStartSec": "infinity",
		"RestartSec": "200ms", "StartLimitIntervalSec": "0", // by default systemd gives up after five failures
		"RestartPreventExitStatus": "78", // exit code for an unusable configuration
		"ExecStart":                "/usr/local/bin/leno agent -config-dir=/etc/leno.d", "ExecReload": "/bin/kill -HUP $MAINPID",
		"RuntimeDirectoryPreserve": "yes",                   // systemd would remove the subnet files at every stop
		"RuntimeDirectoryMode":     "0755", "UMask": "0077", // container runtimes read them
	} {
		if got[key] != want {
			t.Errorf("%s=%s, want %q", key, got[key], want)
		}
	}
	// systemd-analyze requires the program to exist.
	text := strings.ReplaceAll(docpages.Source(t, "examples/systemd/leno.service"), "/usr/local/bin/leno", "/bin/true")
	path := filepath.Join(t.TempDir(), "leno.service")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	// Without a running systemd it cannot check the host's own units.
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput(); err != nil || strings.Contains(string(out), "leno.service") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// 10 means no protection at all. The agent needs the exposure that remains.
	if out, err := exec.Command("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=25", path).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}
