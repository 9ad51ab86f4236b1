package command

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent"
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
