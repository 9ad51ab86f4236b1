package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// registryOptions checks as the agent does: with the registry's limits and
// backends that know their options.
func registryOptions() Options {
	return Options{
		CheckNetworkName: registry.CheckNetworkName,
		CheckPool: func(p Pool) error {
			_, err := registry.Pool(p).Normalize()
			return err
		},
		CheckPlan: func(pools []Pool) error {
			var plan registry.Plan
			for _, p := range pools {
				plan = append(plan, registry.Pool(p))
			}
			_, err := plan.Normalize()
			return err
		},
		Backends: map[string]func(json.RawMessage) (json.RawMessage, error){
			"alloc": func(o json.RawMessage) (json.RawMessage, error) { return o, nil },
			"vxlan": normalizeVXLAN,
		},
		CheckEncrypts: func(backend string) error {
			if backend == "alloc" {
				return nil
			}
			return fmt.Errorf("backend %s does not encrypt", backend)
		},
		Collision: func(one, other Backend, name string) string {
			if one.Type != "vxlan" || other.Type != "vxlan" {
				return ""
			}
			var mine, theirs struct{ VNI, Port int }
			if json.Unmarshal(one.Options, &mine) != nil || json.Unmarshal(other.Options, &theirs) != nil || mine != theirs {
				return ""
			}
			return fmt.Sprintf("vni %d on port %d, which network %s uses", mine.VNI, mine.Port, name)
		},
	}
}

const vxlanDefaults = `{"checksum_offload":"auto","direct_routing":false,"gbp":false,"mtu":0,"port":8472,"vni":1}`

// normalizeVXLAN behaves as a backend's Normalize does: defaults, and joined
// errors that name their options.
func normalizeVXLAN(options json.RawMessage) (json.RawMessage, error) {
	o := map[string]any{"vni": 1.0, "port": 8472.0, "direct_routing": false, "gbp": false, "checksum_offload": "auto", "mtu": 0.0}
	given := map[string]any{}
	if err := json.Unmarshal(options, &given); err != nil {
		return nil, err
	}
	var errs []error
	for name, value := range given {
		if _, known := o[name]; !known {
			errs = append(errs, &backend.OptionError{Option: name, Reason: "no such option"})
		}
		o[name] = value
	}
	if vni, ok := o["vni"].(float64); !ok || vni < 1 || vni >= 1<<24 {
		errs = append(errs, &backend.OptionError{Option: "vni", Reason: "must be 1 to 16777215"})
	}
	if o["port"] == o["vni"] {
		errs = append(errs, errors.New("port and vni are the same"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return json.Marshal(o)
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLoadNothingIsDefaults(t *testing.T) {
	got, err := Load(nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Defaults(), got, compare()); diff != "" {
		t.Error(diff)
	}
	got, err = Load(nil, Options{Dev: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Dev(), got, compare()); diff != "" {
		t.Error(diff)
	}
	if got.Networks[0].Pools[0].Prefix.String() != "10.98.0.0/16" || !got.Dev {
		t.Errorf("dev is %+v", got)
	}
}

func TestMerge(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"base.hcl": `
			node_name = "a"
			log_level = "WARN"
			lease { ttl = "1m" }
			consul {
			  address = "127.0.0.1:8500"
			  tls { ca_file = "ca.pem" }
			}
			network "one" {
			  ipv4 { prefix = "10.1.0.0/16" }
			  ip_masq = true
			}`,
		"conf.d/20.json": `{
			"//": "JSON means the same",
			"log_level": "DEBUG",
			"consul": {"service": "", "tls": {"server_name": "consul.example"}},
			"network": {"two": {"ipv6": {"prefix": "fd00:2::/48", "subnet_len": 64}, "backend": {"alloc": {"x": [1, "y"], "z": null}}, "forward": false}}
		}`,
		"conf.d/10.hcl":         `log_level = "ERROR"` + "\n" + `data_dir = "/data"` + "\n" + `lease { on_lost = "exit" }`,
		"conf.d/README.md":      `not read {`,
		"conf.d/sub.hcl/no.hcl": `log_level = "TRACE"`,
	})
	got, err := Load([]string{filepath.Join(dir, "base.hcl"), filepath.Join(dir, "conf.d")}, registryOptions())
	if err != nil {
		t.Fatal(err)
	}
	want := Defaults()
	want.NodeName, want.DataDir, want.Log.Level = "a", "/data", "DEBUG"
	want.Lease.TTL, want.Lease.RenewMargin, want.Lease.OnLost = time.Minute, 40*time.Second, OnLostExit
	want.Consul.Address, want.Consul.Service = "https://127.0.0.1:8500", ""
	want.Consul.TLS = TLS{CAFile: "ca.pem", ServerName: "consul.example"}
	want.Networks = []Network{
		{
			Name: "one", Pools: []Pool{{Prefix: netip.MustParsePrefix("10.1.0.0/16")}}, IPMasq: true, Forward: true,
			Backend:    &Backend{Type: "vxlan", Options: json.RawMessage(vxlanDefaults)},
			SubnetFile: "/run/leno/one.env",
		},
		{
			Name: "two", Pools: []Pool{{Prefix: netip.MustParsePrefix("fd00:2::/48"), SubnetLen: 64}},
			Backend:    &Backend{Type: "alloc", Options: json.RawMessage(`{"x":[1,"y"]}`)},
			SubnetFile: "/run/leno/two.env",
		},
	}
	want.NetworkFiles = map[string]string{"one": filepath.Join(dir, "base.hcl"), "two": filepath.Join(dir, "conf.d/20.json")}
	want.Files = []string{filepath.Join(dir, "base.hcl"), filepath.Join(dir, "conf.d/10.hcl"), filepath.Join(dir, "conf.d/20.json")}
	if diff := cmp.Diff(want, got, compare()); diff != "" {
		t.Errorf("merged (-want +got):\n%s", diff)
	}
}

func TestValues(t *testing.T) {
	for _, tt := range []struct {
		name, src string
		get       func(Config) any
		want      any
	}{
		{"margin follows the ttl", `lease { ttl = "30s" }`, func(c Config) any { return c.Lease.RenewMargin }, 20 * time.Second},
		{"hold grows with a long ttl", `lease { ttl = "24h" }`, func(c Config) any { return c.Lease.Hold }, 48 * time.Hour},
		{"service off", `consul { service = "" }`, func(c Config) any { return c.Consul.Service }, ""},
		{"service unset", `consul { }`, func(c Config) any { return c.Consul.Service }, "leno"},
		{"null is unset", `consul { service = null }`, func(c Config) any { return c.Consul.Service }, "leno"},
		{"prometheus off", `telemetry { prometheus_retention = "0s" }`, func(c Config) any { return c.Telemetry.PrometheusRetention }, time.Duration(0)},
		{"numbers in quotes", `log_rotate_bytes = "1024"`, func(c Config) any { return c.Log.RotateBytes }, 1024},
		{"socket", `http { address = "unix:///run/leno/leno.sock" }`, func(c Config) any { return c.HTTP.Address }, "unix:///run/leno/leno.sock"},
		{"IPv6 listener", `http { address = "[::1]:80" }`, func(c Config) any { return c.HTTP.Address }, "[::1]:80"},
		{"Consul by URL", `consul { address = "https://consul.example" }`, func(c Config) any { return c.Consul.Address }, "https://consul.example"},
		{"template", `underlay { public_ip = "{{ GetPrivateIP }}" }`, func(c Config) any { return c.Underlay.PublicIP }, "{{ GetPrivateIP }}"},
		{"IPv6 address", `underlay { public_ipv6 = "2001:db8::1" }`, func(c Config) any { return c.Underlay.PublicIPv6 }, "2001:db8::1"},
		{"can_reach", `underlay { can_reach = "::ffff:192.0.2.1" }`, func(c Config) any { return c.Underlay.CanReach }, netip.MustParseAddr("192.0.2.1")},
		{"one empty token", `consul {
			token = ""
			token_file = "/t"
		}`, func(c Config) any { return c.Consul.TokenFile }, "/t"},
		{"login", `consul {
			login {
				auth_method       = "nomad-workloads"
				bearer_token_file = "/secrets/nomad_consul.jwt"
				meta              = { host = "a" }
			}
		}`, func(c Config) any { return c.Consul.Login },
			Login{"nomad-workloads", "/secrets/nomad_consul.jwt", map[string]string{"host": "a"}}},
		{"a network as Consul has it", `network "n" {}`, func(c Config) any { return c.Networks[0].Backend == nil && len(c.Networks[0].Pools) == 0 }, true},
		{"no firewall unless asked, but forwarding", `network "n" {}`, func(c Config) any { return []bool{c.Networks[0].IPMasq, c.Networks[0].Forward} }, []bool{false, true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse([]byte(tt.src), "a.hcl", registryOptions())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, tt.get(c), compare()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDevWithFile(t *testing.T) {
	o := registryOptions()
	o.Dev = true
	c, err := Parse([]byte(`network "dev" {
  ipv4 { prefix = "10.1.0.0/16" }
}
network "more" {}`), "a.hcl", o)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, n := range c.Networks {
		names = append(names, n.Name)
	}
	if !slices.Equal(names, []string{"dev", "more"}) || c.Networks[0].Pools[0].Prefix.String() != "10.1.0.0/16" {
		t.Errorf("networks are %+v", c.Networks)
	}
}

func TestOverrides(t *testing.T) {
	o := registryOptions()
	o.Overrides = map[string]Override{}
	for setting, value := range map[string]string{
		"log_level": "trace", "log_json": "true", "consul.address": "10.0.0.1:8500", "consul.tls.ca_file": "/ca",
		"node_name": `a"$\{b`, "lease.ttl": "1m",
	} {
		o.Overrides[setting] = Override{Value: value, Source: "-" + setting}
	}
	c, err := Parse([]byte(`log_level = "WARN"
lease { ttl = "3m" }`), "a.hcl", o)
	if err != nil {
		t.Fatal(err)
	}
	if c.Log.Level != "TRACE" || !c.Log.JSON || c.Consul.Address != "https://10.0.0.1:8500" || c.Consul.TLS.CAFile != "/ca" ||
		c.NodeName != `a"$\{b` || c.Lease.TTL != time.Minute {
		t.Errorf("got %+v", c)
	}
	o.Overrides = map[string]Override{"lease.ttl": {"1s", "-lease-ttl"}, "log_level": {"loud", "LENO_LOG_LEVEL"}}
	_, err = Parse(nil, "a.hcl", o)
	if err == nil || !strings.HasPrefix(err.Error(), "-lease-ttl:2: ") || !strings.Contains(err.Error(), "\nLENO_LOG_LEVEL:1: ") {
		t.Errorf("a bad override gives %v", err)
	}
}

// TestOverriddenToken: a token file that the user names replaces each source of a token in files.
func TestOverriddenToken(t *testing.T) {
	for _, src := range []string{
		`consul { token_file = "/etc/leno.d/token" }`,
		`consul { token = "secret" }`,
		`consul {
			login {
				auth_method       = "hosts"
				bearer_token_file = "/var/lib/leno/jwt"
			}
		}`,
	} {
		o := registryOptions()
		o.Overrides = map[string]Override{"consul.token_file": {"/etc/operator/token", "-consul-token-file"}}
		c, err := Parse([]byte(src), "a.hcl", o)
		if err != nil || c.Consul.TokenFile != "/etc/operator/token" || c.Consul.Token != "" || c.Consul.Login.AuthMethod != "" {
			t.Errorf("%s: %+v, %v", src, c.Consul, err)
		}
		o.Overrides["consul.token_file"] = Override{}
		if c, err := Parse([]byte(src), "a.hcl", o); err != nil || c.Consul.TokenFile != "" {
			t.Errorf("%s: with an empty one: %+v, %v", src, c.Consul, err)
		}
	}
}

// TestEmptyFiles checks that a file that sets nothing is distinguished from one that sets defaults.
func TestEmptyFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"a.hcl": "", "b.hcl": "\n \t\n", "c.hcl": "# network \"x\" {}\n", "d.json": "{}", "e.json": `{"//": "nothing"}`,
		"f.hcl": "lease {}\n", "g.hcl": `log_level = "INFO"`, "h.hcl": "network \"n\" {}\n", "i.json": `{"network": {"m": {}}}`,
	})
	o := registryOptions()
	o.Overrides = map[string]Override{"node_name": {"a", "-node-name"}}
	c, err := Load([]string{dir}, o)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, path := range c.Empty {
		got = append(got, filepath.Base(path))
	}
	if want := []string{"a.hcl", "b.hcl", "c.hcl", "d.json", "e.json"}; !slices.Equal(got, want) {
		t.Errorf("empty are %q, want %q", got, want)
	}
}

// TestHiddenFiles checks that the files that editors create beside an open file are not read from a directory, but that
// one is that is named.
func TestHiddenFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"leno.hcl": `log_level = "INFO"`, ".leno.hcl": "!", ".leno.json": "!", ".leno.hcl.swp": "!",
		"leno.hcl~": "!", "#leno.hcl#": "!", "leno.hcl.orig": "!", "leno.hcl.rpmnew": "!", "4913": "!"})
	if err := os.Symlink("user@host.1234:5678", filepath.Join(dir, ".#leno.hcl")); err != nil {
		t.Fatal(err)
	}
	c, err := Load([]string{dir}, Options{})
	if want := []string{filepath.Join(dir, "leno.hcl")}; err != nil || !slices.Equal(c.Files, want) {
		t.Errorf("read %q, %v", c.Files, err)
	}
	if _, err := Load([]string{filepath.Join(dir, ".leno.hcl")}, Options{}); err == nil {
		t.Error("a file that is named was not read")
	}
}

// TestNoFiles checks that directories without configuration files are refused, unless another source has one.
func TestNoFiles(t *testing.T) {
	empty, other := t.TempDir(), t.TempDir()
	write(t, empty, map[string]string{".leno.hcl": "", "leno.conf": "", "below/leno.hcl": ""})
	_, err := Load([]string{empty}, Options{})
	want := "No configuration: There is no file with a name that ends in .hcl or .json in " + empty +
		". Create one, for example " + empty + "/leno.hcl, or name another file or directory."
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if _, err := Load([]string{empty, other}, Options{}); err == nil || !strings.Contains(err.Error(), empty+" and "+other) {
		t.Errorf("two directories: %v", err)
	}
	write(t, other, map[string]string{"a.hcl": ""})
	if c, err := Load([]string{empty, other}, Options{}); err != nil || len(c.Files) != 1 {
		t.Errorf("with a file: %q, %v", c.Files, err)
	}
}

func TestLoadMissing(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"bad.hcl": `log_level = "LOUD"`})
	_, err := Load([]string{filepath.Join(dir, "none.hcl"), filepath.Join(dir, "bad.hcl"), filepath.Join(dir, "bad.hcl")}, Options{})
	var all *Errors
	if !errors.As(err, &all) || len(all.Diags) != 3 {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"none.hcl: no such file", `"LOUD" is not one of`, "more than once"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
}

// TestNullBlocks checks that a null in JSON is no block.
func TestNullBlocks(t *testing.T) {
	for src, want := range map[string]string{
		`{"network": {"a": null}}`:                         "network",
		`{"network": [{"a": {}}, {"b": null}]}`:            "network",
		`{"network": {"a": {"ipv4": null}}}`:               "ipv4",
		`{"network": {"a": {"backend": {"alloc": null}}}}`: "backend",
		`{"consul": {"tls": null}}`:                        "tls",
		`{"etcd": null}`:                                   "etcd",
		`{"lease": null}`:                                  "lease",
	} {
		_, err := Parse([]byte(src), "a.json", registryOptions())
		if want := "a.json:1: Null block: The " + want + " block is null: remove it, or write {}."; err == nil || err.Error() != want {
			t.Errorf("%s:\ngot  %v\nwant %s", src, err, want)
		}
	}
	const src = `{"//": null, "log_level": null, "network": {"//": null, "a": {"backend": {"alloc": {"x": null}}, "ipv4": {"prefix": "10.1.0.0/16"}}}}`
	if _, err := Parse([]byte(src), "a.json", registryOptions()); err != nil {
		t.Error(err)
	}
}

// TestDuplicatePorts checks that a port has one entry in public_ports, however it is written.
func TestDuplicatePorts(t *testing.T) {
	_, err := Parse([]byte(`underlay {
  public_ip    = "192.0.2.1"
  public_ports = { "08472" = 1, 8472 = 2 }
}`), "a.hcl", registryOptions())
	if want := `a.hcl:3: Invalid value for "public_ports": "08472" and "8472" are the same port.`; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestJSONByContent: a name without an extension of its own, such as that of standard input, says nothing about the syntax.
func TestJSONByContent(t *testing.T) {
	const src = "\n {\"log_level\": \"DEBUG\"}"
	for _, name := range []string{"standard input", "/dev/fd/63", "a.conf", "a.json"} {
		if c, err := Parse([]byte(src), name, registryOptions()); err != nil || c.Log.Level != "DEBUG" {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Format([]byte(src), name); err == nil || !strings.Contains(err.Error(), "not JSON") {
			t.Errorf("%s is formatted: %v", name, err)
		}
	}
	if _, err := Parse([]byte(src), "a.hcl", registryOptions()); err == nil {
		t.Error("a file with the extension of HCL is read as JSON")
	}
	if c, err := Parse([]byte(`log_level = "DEBUG"`), "standard input", registryOptions()); err != nil || c.Log.Level != "DEBUG" {
		t.Errorf("HCL: %v", err)
	}
}

func TestFormat(t *testing.T) {
	out, err := Format([]byte("lease {\nttl=\"1m\" # why\n  on_lost   = \"exit\"\n}\n"), "a.hcl")
	if err != nil {
		t.Fatal(err)
	}
	if want := "lease {\n  ttl     = \"1m\" # why\n  on_lost = \"exit\"\n}\n"; string(out) != want {
		t.Errorf("got %q, want %q", out, want)
	}
	if _, err := Format([]byte("lease {"), "a.hcl"); err == nil || !strings.Contains(err.Error(), "a.hcl:1: ") {
		t.Errorf("a syntax error gives %v", err)
	}
	if _, err := Format([]byte("{}"), "a.json"); err == nil {
		t.Error("JSON was formatted")
	}
}
