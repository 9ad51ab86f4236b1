package main

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/santhosh-tekuri/jsonschema/v6"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/lenonet/leno/agent/config"
)

const (
	root       = "../../../"
	schemaPath = root + schemaFile
)

func newSource(t *testing.T) *source {
	t.Helper()
	s := &source{root: root, version: "1.0.0"}
	if err := s.read(); err != nil {
		t.Fatal(err)
	}
	return s
}

func compile(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile(schemaPath)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler() // it checks the schema against the one of JSON Schema 2020-12
	if err := c.AddResource(schemaID, doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile(schemaID)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// toJSON converts a configuration in HCL to HCL's JSON syntax.
func toJSON(t *testing.T, body *hclsyntax.Body) map[string]any {
	t.Helper()
	out := map[string]any{}
	for name, attribute := range body.Attributes {
		v, diags := attribute.Expr.Value(nil)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		text, err := ctyjson.Marshal(v, v.Type())
		if err != nil {
			t.Fatal(err)
		}
		out[name] = json.RawMessage(text)
	}
	for _, block := range body.Blocks {
		at := out
		for _, key := range append([]string{block.Type}, block.Labels...)[:len(block.Labels)] {
			if at[key] == nil {
				at[key] = map[string]any{}
			}
			at = at[key].(map[string]any)
		}
		last := block.Type
		if len(block.Labels) > 0 {
			last = block.Labels[len(block.Labels)-1]
		}
		at[last] = toJSON(t, block.Body)
	}
	return out
}

func validate(t *testing.T, schema *jsonschema.Schema, text []byte) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return schema.Validate(doc)
}

// TestSchemaAccepts converts all configurations in HCL that leno's repository has to JSON: the schema accepts those that
// the loader accepts.
func TestSchemaAccepts(t *testing.T) {
	schema := compile(t)
	files := []string{
		"config.hcl.example", "packaging/leno.hcl", "agent/config/testdata/etcd_default.hcl", "agent/config/testdata/kubernetes_default.hcl",
	}
	accepted := 0
	for _, name := range files {
		src, err := os.ReadFile(root + name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.Parse(src, name, config.Options{}); err != nil {
			continue
		}
		accepted++
		file, diags := hclsyntax.ParseConfig(src, name, hcl.InitialPos)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		text, err := json.Marshal(toJSON(t, file.Body.(*hclsyntax.Body)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.Parse(text, name+".json", config.Options{}); err != nil {
			t.Errorf("%s as JSON: %v\n%s", name, err, text)
		}
		if err := validate(t, schema, text); err != nil {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
	if accepted < 2 {
		t.Errorf("only %d of the files are valid", accepted)
	}
}

// TestSchemaAgreesWithLoader validates small configurations with both.
func TestSchemaAgreesWithLoader(t *testing.T) {
	schema := compile(t)
	valid := map[string]string{
		"nothing":         `{}`,
		"a comment":       `{"//": "ours", "consul": {"//": "local"}}`,
		"a level":         `{"log_level": "debug"}`,
		"another case":    `{"log_level": "Info"}`,
		"a comment on it": `{"network": {"a": {"ipv4": {"prefix": "10.1.0.0/16"}, "backend": {"vxlan": {"//": "ours", "checksum_offload": "on"}}}}}`,
		"durations":       `{"lease": {"ttl": "1h30m", "hold": "50.5h"}, "telemetry": {"prometheus_retention": "0"}}`,
		"a joined one":    `{"network": {"blue": {"ip_masq": true}}}`,
		"a list":          `{"network": [{"a": {"ipv4": {"prefix": "10.1.0.0/16"}}}, {"b": {}}]}`,
		"a backend":       `{"network": {"a": {"ipv6": {"prefix": "fd00::/48", "subnet_len": 64}, "backend": {"udp": {"port": 8286}}}}}`,
		"no options":      `{"network": {"a": {"ipv4": {"prefix": "10.1.0.0/16"}, "backend": {"host-gw": {}}}}}`,
		"another store":   `{"etcd": {"endpoints": ["https://10.0.0.1:2379"], "tls": {"ca_file": "ca.pem"}}}`,
		"a list of names": `{"allowed_networks": ["a*"], "watch_networks": true}`,
	}
	invalid := map[string]string{
		"an unknown option":            `{"loglevel": "INFO"}`,
		"an unknown option in a block": `{"lease": {"onlost": "exit"}}`,
		"a number as a duration":       `{"lease": {"ttl": "90"}}`,
		"a negative duration":          `{"lease": {"ttl": "-1m"}}`,
		"another value":                `{"lease": {"on_lost": "panic"}}`,
		"another firewall":             `{"firewall": {"type": "pf"}}`,
		"another level":                `{"log_level": "VERBOSE"}`,
		"a null network":               `{"network": {"a": null}}`,
		"a negative number":            `{"log_rotate_bytes": -1}`,
		"half a file":                  `{"log_rotate_max_files": 1.5}`,
		"a list as text":               `{"node_name": ["a"]}`,
		"text as a list":               `{"allowed_networks": "*"}`,
		"two stores":                   `{"consul": {}, "etcd": {}}`,
		"no prefix":                    `{"network": {"a": {"ipv4": {"subnet_len": 24}}}}`,
		"a backend without addresses":  `{"network": {"a": {"backend": {"vxlan": {}}}}}`,
		"a network without a name":     `{"network": {"ipv4": {"prefix": "10.1.0.0/16"}}}`,
		"a server's name to verify":    `{"http": {"tls": {"server_name": "a"}}}`,
		"a list of lists":              `{"underlay": {"interfaces": [["eth0"]]}}`,
	}
	for name, text := range valid {
		if _, err := config.Parse([]byte(text), "a.json", config.Options{}); err != nil {
			t.Errorf("%s: the loader says %v", name, err)
		}
		if err := validate(t, schema, []byte(text)); err != nil {
			t.Errorf("%s: the schema says %v", name, err)
		}
	}
	for name, text := range invalid {
		if _, err := config.Parse([]byte(text), "a.json", config.Options{}); err == nil {
			t.Errorf("%s: the loader accepts it", name)
		}
		if err := validate(t, schema, []byte(text)); err == nil {
			t.Errorf("%s: the schema accepts it", name)
		}
	}
	// Only a build with its backends knows these.
	for _, text := range []string{
		`{"network": {"a": {"ipv4": {"prefix": "10.1.0.0/16"}, "backend": {"gre": {}}}}}`,
		`{"network": {"a": {"ipv4": {"prefix": "10.1.0.0/16"}, "backend": {"vxlan": {"vnl": 1}}}}}`,
		`{"network": {"a": {"ipv4": {"prefix": "10.1.0.0/16"}, "backend": {"vxlan": {}, "udp": {}}}}}`,
	} {
		if err := validate(t, schema, []byte(text)); err == nil {
			t.Errorf("the schema accepts %s", text)
		}
	}
}

// TestSchemaOfBackends checks that an option of a backend has its fixed choices.
func TestSchemaOfBackends(t *testing.T) {
	const src = `{"network": {"a": {"ipv4": {"prefix": "10.1.0.0/16"}, "backend": {"vxlan": {"checksum_offload": "x"}}}}}`
	if validate(t, compile(t), []byte(src)) == nil {
		t.Error("the schema accepts another value of checksum_offload")
	}
}
