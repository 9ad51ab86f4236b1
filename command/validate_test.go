package command

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/command/cli"
)

// TestValidateShowsOptions checks that validate shows each option of a backend with its default, except those that are
// not set, and refuses options of a backend without any.
func TestValidateShowsOptions(t *testing.T) {
	w := world{backends: agent.Backends()}
	validate := func(backend string) result {
		path := tree(t, map[string]string{"a.hcl": "network \"default\" {\n  ipv4 {\n    prefix = \"10.5.0.0/16\"\n  }\n  " + backend + "\n}\n"})
		return w.run("validate", "-no-files", path)
	}
	for name, kind := range agent.Backends() {
		effective, err := kind.Normalize(nil)
		if err != nil {
			t.Fatal(err)
		}
		var options map[string]any
		if err := json.Unmarshal(effective, &options); err != nil {
			t.Fatal(err)
		}
		got := validate(fmt.Sprintf("backend %q {}", name))
		if got.code != 0 {
			t.Errorf("%s: %+v", name, got)
		}
		for option, value := range options {
			if value == "" {
				if strings.Contains(got.stdout, " "+option+" ") {
					t.Errorf("%s: %s is in\n%s", name, option, got.stdout)
				}
				continue
			}
			if !regexp.MustCompile(`(?m)^  ` + option + ` +` + regexp.QuoteMeta(fmt.Sprint(value)) + `$`).MatchString(got.stdout) {
				t.Errorf("%s: %s = %v is not in\n%s", name, option, value, got.stdout)
			}
		}
		if len(options) == 0 {
			if got := validate(fmt.Sprintf("backend %q {\n    port = 1\n  }", name)); got.code == 0 {
				t.Errorf("%s has an option: %+v", name, got)
			}
		}
	}
}

// TestValidateDirectories checks that validate and fmt ignore the lock of an editor, and that validate refuses a directory
// without configuration files.
func TestValidateDirectories(t *testing.T) {
	dir := tree(t, map[string]string{"leno.hcl": "log_level = \"INFO\"\n"})
	if err := os.Symlink("user@host.1234:5678", filepath.Join(dir, ".#leno.hcl")); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"validate", "fmt"} {
		if got := (world{}).run(command, dir); got.code != cli.ExitDone || got.stderr != "" {
			t.Errorf("%s: %+v", command, got)
		}
	}
	got := world{}.run("validate", t.TempDir())
	if got.code != cli.ExitFailed || got.stdout != "" || !strings.Contains(got.stderr, "No configuration") {
		t.Errorf("an empty directory: %+v", got)
	}
}

// TestValidateBackendFiles checks that a file that a backend's option names is reported at the option's line, unless the
// configuration is for another host.
func TestValidateBackendFiles(t *testing.T) {
	w := world{backends: agent.Backends()}
	path := tree(t, map[string]string{"a.hcl": "network \"n\" {\n  ipv4 {\n    prefix = \"10.5.0.0/16\"\n  }\n" +
		"  backend \"wireguard\" {\n    psk_file = \"/none/psk\"\n  }\n}\n"})
	got := w.run("validate", path)
	if got.code != cli.ExitFailed || !strings.Contains(got.stderr, "a.hcl line 6") || !strings.Contains(got.stderr, `"psk_file"`) {
		t.Errorf("%+v", got)
	}
	if got := w.run("validate", "-no-files", path); got.code != cli.ExitDone {
		t.Errorf("with -no-files: %+v", got)
	}
}
