package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// golden compares text with a file; LENO_UPDATE_GOLDEN=1 writes the file.
func golden(t *testing.T, path, text string) {
	t.Helper()
	if os.Getenv("LENO_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("differs from %s (-want +got):\n%s", path, diff)
	}
}

// inputs returns the invalid files in testdata.
func inputs() ([]string, error) {
	var files []string
	for _, pattern := range []string{"testdata/*.hcl", "testdata/*.json"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	return files, nil
}

// TestErrorTexts checks that each file in testdata has the errors that its golden file lists, one per line.
func TestErrorTexts(t *testing.T) {
	files, err := inputs()
	if err != nil || len(files) < 8 {
		t.Fatalf("found %d files, %v", len(files), err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			_, err := Load([]string{path}, registryOptions())
			var all *Errors
			if !errors.As(err, &all) {
				t.Fatalf("loaded, or another kind of error: %v", err)
			}
			golden(t, path+".golden", err.Error()+"\n")
		})
	}
}

func TestRender(t *testing.T) {
	_, err := Load([]string{"testdata/lease.hcl", "testdata/overlap.hcl"}, registryOptions())
	var all *Errors
	if !errors.As(err, &all) {
		t.Fatal(err)
	}
	golden(t, "testdata/render.golden", all.Render(78, false))
	if strings.Contains(all.Render(0, false), "\x1b[") || !strings.Contains(all.Render(0, true), "\x1b[") {
		t.Error("color is not as asked for")
	}
}

// TestDuplicateAcrossFiles checks that the error about a network that is defined in two files names
// both.
func TestDuplicateAcrossFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"a.hcl": "\nnetwork \"n\" {}\n", "b.hcl": "network \"n\" {}\n"})
	_, err := Load([]string{dir}, registryOptions())
	want := dir + `/b.hcl:1: Duplicate network: The network "n" is already defined at ` + dir + `/a.hcl:2. A network is defined in one place only.`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestErrorsOfReplacedValues checks that a value that a later file replaces is still checked.
func TestErrorsOfReplacedValues(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"a.hcl": `log_level = "LOUD"`, "b.hcl": `log_level = "INFO"`})
	if _, err := Load([]string{dir}, registryOptions()); err == nil || !strings.Contains(err.Error(), "a.hcl:1: ") {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	files, err := inputs()
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range append(files, examplePath) {
		src, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src, isJSON(path, src))
	}
	f.Fuzz(func(t *testing.T, src []byte, json bool) {
		name := map[bool]string{false: "a.hcl", true: "a.json"}[json]
		c, err := Parse(src, name, registryOptions())
		var all *Errors
		if err != nil && !errors.As(err, &all) {
			t.Fatalf("not an *Errors: %v", err)
		}
		if all != nil && (all.Error() == "" || all.Render(78, false) == "") {
			t.Fatal("errors without a text")
		}
		if err != nil {
			return
		}
		if c.Lease.TTL < minTTL || c.Lease.RenewMargin <= 0 || c.Lease.TTL-c.Lease.RenewMargin < minRenewPeriod(c.Lease.TTL) || c.Lease.Hold < 2*c.Lease.TTL {
			t.Fatalf("limits are broken: %+v", c.Lease)
		}
		for _, n := range c.Networks {
			if n.Name == "" || n.SubnetFile == "" || (n.Backend == nil) != (len(n.Pools) == 0) {
				t.Fatalf("incomplete network: %+v", n)
			}
		}
	})
}

// TestErrorsShowNoSecrets checks that source lines are shown without the secrets in them.
func TestErrorsShowNoSecrets(t *testing.T) {
	const secret, hidden = "6d2f9ad8-31f5-4d4f-8b6c-4b1c6a2d7f11", "defsecretdef"
	for name, src := range map[string]string{
		"a heredoc":           "consul {\n  token = <<EOF\n" + secret + "\n}\n",
		"another name":        "consul { tokens = \"" + secret + "\" }",
		"another letter":      "consul {\n  Token = \"" + secret + "\"\n}\n",
		"a longer name":       "consul {\n  acl_token = \"" + secret + "\"\n}\n",
		"a name of its own":   "consul {\n  acl = \"" + secret + "\"\n}\n",
		"no equals sign":      "consul {\n  token \"" + secret + "\"\n}\n",
		"on the next line":    "consul {\n  token =\n\"" + secret + "\"\n}\n",
		"as the file":         "consul {\n  token_file = \"" + secret + "\"\n  token = \"" + secret + "\"\n}\n",
		"as a label":          "consul \"" + secret + "\" {}\n",
		"a quote is missing":  "consul {\n  token = \"" + secret + "\n}\n",
		"no quotes":           "consul {\n  token = " + secret + "\n}\n",
		"no value":            "consul { token=\"" + secret + "\", }\n",
		"in a login":          "consul {\n  login {\n    auth_method = \"" + secret + "\"\n    jwt = \"" + secret + "\"\n  }\n}\n",
		"with a file":         "consul {\n  token = \"" + secret + "\"\n  token_file = \"/x\"\n}\n",
		"twice":               "consul {\n  token = \"" + secret + "\"\n  token = \"" + secret + "\"\n}\n",
		"a list":              "consul {\n  token = [\"" + secret + "\", \"" + secret + "\"]\n}\n",
		"two words":           "consul {\n  token = \"" + secret + " " + secret + "\"\n}\n",
		"a template":          "consul {\n  token = \"" + secret + "${x}\"\n}\n",
		"out of place":        "token = \"" + secret + "\"\n",
		"password":            "consul {\n  address = \"http://admin:" + secret + "@consul:8500\"\n}\n",
		"password, no scheme": "consul {\n  address = \"admin:" + secret + "@consul:8500\"\n}\n",
		"a token's file":      "consul {\n  token_file = \"" + secret + "\"\n}\n",
		"a hash":              "token = \"abc#x" + hidden + "\"\n",
		"one line":            "consul {\n  kv_prefix = \"" + hidden + "\" token = \"" + hidden + "\"\n}\n",
		"a user":              "consul {\n  address = \"http://" + hidden + "@x:8500\"\n}\n",
		"statsd":              "telemetry {\n  statsd_address = \"u:" + hidden + "@h:1x\"\n}\n",
		"statsd, slash":       "telemetry {\n  statsd_address = \"u:" + hidden + "/x@h:1\"\n}\n",
		"statsd, scheme":      "telemetry {\n  statsd_address = \"udp://u:pa/" + hidden + "@h:8125\"\n}\n",
		"statsd, a quote":     "telemetry {\n  statsd_address = \"udp://u:" + hidden + "\\\" x@h:8125\"\n}\n",
		"public_ip":           "underlay {\n  public_ip = \"u:" + hidden + "@h\"\n}\n",
		"keys":                "network \"n\" {\n  backend \"vxlan\" {\n    psk = \"" + hidden + "\"\n    private_key = \"" + hidden + "\"\n  }\n}\n",
		"password, bad port":  "consul {\n  address = \"https://admin:" + secret + "@consul:x\"\n}\n",
	} {
		for _, file := range []string{"leno.hcl", "leno.json"} {
			text := src
			if file == "leno.json" {
				text = strings.NewReplacer("consul {", `{"consul":{`, "  token =", `"token":`, "address =", `"address":`, "token_file =", `,"token_file":`).Replace(src)
			}
			_, err := Parse([]byte(text), file, registryOptions())
			var all *Errors
			if !errors.As(err, &all) {
				t.Errorf("%s, %s: %v", name, file, err)
				continue
			}
			for _, got := range []string{all.Error(), all.Render(0, false), all.Render(80, true)} {
				if strings.Contains(got, secret) || strings.Contains(got, hidden) {
					t.Errorf("%s, %s:\n%s", name, file, got)
				}
			}
		}
	}
}

// TestErrorsShowPaths checks that source lines are shown with the paths of files that contain secrets, but without a
// token in such a place.
func TestErrorsShowPaths(t *testing.T) {
	const path, secret = "/etc/leno.d/consul.token", "6d2f9ad8-31f5-4d4f-8b6c-4b1c6a2d7f11"
	for src, want := range map[string]string{
		"consul {\n  token_file = \"PATH\", x\n}\n":                          `token_file = "PATH"`,
		"consul { token_file = \"PATH\", }\n":                                `token_file = "PATH"`,
		"etcd {\n  password_file = \"PATH\", x\n}\n":                         `password_file = "PATH"`,
		"consul {\n  login {\n    bearer_token_file = \"PATH\", x\n  }\n}\n": `bearer_token_file = "PATH"`,
		"consul { token_file = \"" + secret + "\", }\n":                      `token_file = "***`,
		"consul { token_file = \"/alloc/" + secret + "/consul.token\", }\n":  `token_file = "/alloc/***`,
		"consul { token_file = \"s.Zm9vYmFy\", }\n":                          `token_file = "***`,
		"consul {\n  token_file = \"PATH\"\n  token = \"hvs.1\", x\n}\n":     `token = "***`,
		"consul { token_file = \"PATH\", token = \"hvs.1\" }\n":              `token_file = "PATH", ***`,
		`{"consul": {"token_file": "PATH" "token": "hvs.1"}}` + "\n":         `"PATH"`,
	} {
		src, want = strings.ReplaceAll(src, "PATH", path), strings.ReplaceAll(want, "PATH", path)
		name := map[bool]string{false: "a.hcl", true: "a.json"}[strings.HasPrefix(src, "{")]
		_, err := Parse([]byte(src), name, Options{})
		var all *Errors
		if !errors.As(err, &all) {
			t.Errorf("%s: %v", src, err)
			continue
		}
		got := all.Render(0, false)
		if !strings.Contains(got, want) || strings.Contains(got, secret) || strings.Contains(got, "hvs.1") {
			t.Errorf("%s: want %s in\n%s", src, want, got)
		}
	}
}
