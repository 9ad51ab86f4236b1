package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// defaultEtcd returns the etcd block with its documented defaults.
func defaultEtcd() Etcd {
	return Etcd{Endpoints: []string{"http://127.0.0.1:2379"}, Prefix: "/coreos.com/network", Network: "default"}
}

// TestEtcd reads etcd blocks of several files.
func TestEtcd(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  Etcd
	}{
		{"no block", map[string]string{"a.hcl": `log_level = "INFO"`}, Etcd{}},
		{"an empty block", map[string]string{"a.hcl": "etcd {}"}, defaultEtcd()},
		{"an empty block in JSON", map[string]string{"a.json": `{"etcd": {}}`}, defaultEtcd()},
		{"merged", map[string]string{
			"a.hcl": "etcd {\n endpoints = [\"https://a:1\"]\n username = \"leno\"\n tls { ca_file = \"ca\" }\n}",
			"b.json": `{"etcd": {"endpoints": ["https://b:1", "https://c:1"], "password_file": "/p", "prefix": "/x",
				"network": "blue", "tls": {"cert_file": "cert", "key_file": "key", "server_name": "etcd"}}}`,
			"c.hcl": "etcd {}",
		}, Etcd{
			Endpoints:    []string{"https://b:1", "https://c:1"},
			Prefix:       "/x",
			Network:      "blue",
			Username:     "leno",
			PasswordFile: "/p",
			TLS: TLS{
				CAFile:     "ca",
				CertFile:   "cert",
				KeyFile:    "key",
				ServerName: "etcd",
			},
		}},
		{"TLS without a scheme", map[string]string{
			"a.hcl": "etcd {\n endpoints = [\"a:1\", \"https://b:1\"]\n tls { ca_file = \"ca\" }\n}",
		}, Etcd{
			Endpoints: []string{"https://a:1", "https://b:1"},
			Prefix:    "/coreos.com/network",
			Network:   "default",
			TLS:       TLS{CAFile: "ca"},
		}},
		{"an empty tls block", map[string]string{
			"a.hcl": "etcd {\n endpoints = [\"a:1\"]\n}", "b.json": `{"etcd": {"tls": {}}}`,
		}, Etcd{
			Endpoints: []string{"https://a:1"},
			Prefix:    "/coreos.com/network",
			Network:   "default",
		}},
		{"a password", map[string]string{"a.hcl": "etcd {\n username = \"u\"\n password = \" p#q \"\n}"}, Etcd{
			Endpoints: []string{"http://127.0.0.1:2379"},
			Prefix:    "/coreos.com/network",
			Network:   "default",
			Username:  "u",
			Password:  " p#q ",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, tt.files)
			got, err := Load([]string{dir}, registryOptions())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got.Etcd); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			consul := Defaults().Consul
			if got.Store() == StoreEtcd {
				consul = Consul{}
			}
			if diff := cmp.Diff(consul, got.Consul); diff != "" {
				t.Errorf("the options of Consul (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTwoStores checks that the error about blocks of both stores names both.
func TestTwoStores(t *testing.T) {
	for name, tt := range map[string]struct {
		files     map[string]string
		overrides map[string]Override
		want      string
	}{
		"one file": {
			files: map[string]string{"a.hcl": "etcd {}\n\nconsul {}\n"},
			want: "DIR/a.hcl:1: Two stores: The consul block at DIR/a.hcl:3 makes Consul the store, " +
				"the etcd block at DIR/a.hcl:1 makes it etcd: remove one of them.",
		},
		"several files": {
			files: map[string]string{"a.hcl": "consul {}\n", "b.json": "{\n\"etcd\": {}}", "c.hcl": "consul {}\n"},
			want: "DIR/b.json:2: Two stores: The consul block at DIR/a.hcl:1 makes Consul the store, " +
				"the etcd block at DIR/b.json:2 makes it etcd: remove one of them.",
		},
		"a flag": {
			files:     map[string]string{"a.hcl": "etcd {}\n"},
			overrides: map[string]Override{"consul.address": {"127.0.0.1:8500", "-consul-address"}},
			want: "DIR/a.hcl:1: Two stores: -consul-address makes Consul the store, " +
				"the etcd block at DIR/a.hcl:1 makes it etcd: remove one of them.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, tt.files)
			o := registryOptions()
			o.Overrides = tt.overrides
			_, err := Load([]string{dir}, o)
			if want := strings.ReplaceAll(tt.want, "DIR", dir); err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

func TestReadPassword(t *testing.T) {
	for name, tt := range map[string]struct{ content, want, err string }{
		"a line":           {"hunter2\n", "hunter2", ""},
		"no line break":    {"hunter2", "hunter2", ""},
		"a DOS file":       {"hunter2\r\n", "hunter2", ""},
		"white space":      {" hunter 2 \n", " hunter 2 ", ""},
		"empty":            {"", "", "no password in it"},
		"an empty line":    {"\n", "", "no password in it"},
		"two lines":        {"hunter2\nhunter3\n", "", "more than one line"},
		"another encoding": {"hunter\xff\n", "", "not UTF-8"},
		"binary":           {"hunter\x00\n", "", "control character"},
	} {
		path := filepath.Join(t.TempDir(), "password")
		if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Etcd{Password: "unused", PasswordFile: path}.ReadPassword(t.Context())
		if tt.err == "" {
			if got != tt.want || err != nil {
				t.Errorf("%s: read %q, %v, want %q", name, got, err, tt.want)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.err) || !strings.Contains(err.Error(), path) ||
			strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %v, want %q", name, err, tt.err)
		}
	}
	if got, err := (Etcd{Password: "p"}).ReadPassword(t.Context()); got != "p" || err != nil {
		t.Errorf("without a file: %q, %v", got, err)
	}
	_, err := Etcd{PasswordFile: filepath.Join(t.TempDir(), "none")}.ReadPassword(t.Context())
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
}

// TestErrorsShowNoPasswords checks that source lines of an etcd block are shown without the password, which has no form
// of its own.
func TestErrorsShowNoPasswords(t *testing.T) {
	const secret = "hunter2secret"
	for name, src := range map[string]string{
		"another name":        "etcd {\n  passwrd = \"" + secret + "\"\n}\n",
		"a name of its own":   "etcd {\n  auth = \"" + secret + "\"\n}\n",
		"after the network":   "etcd {\n  network = \"default\"\n  auth = \"" + secret + "\"\n}\n",
		"no equals sign":      "etcd {\n  password \"" + secret + "\"\n}\n",
		"on the next line":    "etcd {\n  password =\n\"" + secret + "\"\n}\n",
		"a heredoc":           "etcd {\n  password = <<EOF\n" + secret + "\n}\n",
		"as a label":          "etcd \"" + secret + "\" {}\n",
		"a quote is missing":  "etcd {\n  password = \"" + secret + "\n}\n",
		"no quotes":           "etcd {\n  password = " + secret + "\n}\n",
		"a hash":              "etcd {\n  password = \"a#" + secret + "\"\n  passwords = 1\n}\n",
		"with a file":         "etcd {\n  password = \"" + secret + "\"\n  password_file = \"/x\"\n}\n",
		"without a user":      "etcd {\n  password = \"" + secret + "\"\n}\n",
		"a control character": "etcd {\n  username = \"x\"\n  password = \"" + secret + "\\n\"\n}\n",
		"twice":               "etcd {\n  password = \"" + secret + "\"\n  password = \"" + secret + "\"\n}\n",
		"a list":              "etcd {\n  password = [\"" + secret + "\"]\n}\n",
		"a template":          "etcd {\n  password = \"" + secret + "${x}\"\n}\n",
		"a directive":         "etcd {\n  password = \"a%{" + secret + "}\"\n}\n",
		"an open directive":   "etcd {\n  password = \"a%{ if " + secret + " }\"\n}\n",
		"in an endpoint":      "etcd {\n  endpoints = [\"http://root:" + secret + "@etcd:2379\"]\n}\n",
		"after others":        "log_level = \"INFO\" etcd { pass = \"" + secret + "\" }\n",
		"JSON in one line":    `{"log_level":"INFO","etcd":{"username":"u","pass":"` + secret + `"}}`,
		"JSON in two lines":   `{"log_level":"INFO","etcd" : {` + "\n" + `"pass":"` + secret + `"}}`,
		"no scheme":           "etcd {\n  endpoints = [\"root:" + secret + "@etcd:2379\"]\n}\n",
	} {
		for _, file := range []string{"leno.hcl", "leno.json"} {
			text := src
			if file == "leno.json" {
				text = strings.NewReplacer("etcd {", `{"etcd":{`, "  password =", `"password":`, "endpoints =", `"endpoints":`,
					"network =", `"network":`, "username =", `"username":`, "password_file =", `,"password_file":`).Replace(src)
			}
			_, err := Parse([]byte(text), file, Options{})
			var all *Errors
			if !errors.As(err, &all) {
				t.Errorf("%s, %s: %v", name, file, err)
				continue
			}
			for _, got := range []string{all.Error(), all.Render(0, false), all.Render(80, true)} {
				if strings.Contains(got, secret) {
					t.Errorf("%s, %s:\n%s", name, file, got)
				}
			}
		}
	}
}
