package config

import (
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReference reads the example: every setting is described there, also those in commented blocks.
func TestReference(t *testing.T) {
	src, err := os.ReadFile(examplePath)
	if err != nil {
		t.Fatal(err)
	}
	all, err := ReadReference(string(src))
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]Reference{}
	for _, r := range all {
		if _, twice := by[r.Name]; twice {
			t.Errorf("%s is there twice", r.Name)
		}
		by[r.Name] = r
	}
	for _, s := range Settings() {
		// The first two are blocks, and a listener verifies no server's name.
		if slices.Contains([]string{"network.*.ipv4/ipv6", "network.*.backend", "http.tls.server_name"}, s.Name) {
			continue
		}
		if r, ok := by[s.Name]; !ok || r.Block {
			t.Errorf("%s is not in the example", s.Name)
		}
	}
	want := []Reference{
		{Name: "etcd.tls", Block: true},
		{Name: "etcd.prefix", Value: `"/coreos.com/network"`, Text: "The prefix of flannel's keys (flanneld -etcd-prefix)."},
		{Name: "log_rotate_duration", Value: `"0s"`, Text: by["log_rotate_bytes"].Text},
		{Name: "network.*.backend.vxlan.port", Value: "8472", Text: "UDP."},
		{Name: "network.*.ipv6.prefix", Value: `"fd00:5::/48"`},
		{Name: "network.*.ip_masq", Value: "false", Text: "Masquerade packets from this host's subnet that leave the network."},
	}
	for _, w := range want {
		if diff := cmp.Diff(w, by[w.Name]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", w.Name, diff)
		}
	}
}

func TestReferenceRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"}\n":          "line 1 ends no block",
		"a {\n":        "the block a does not end",
		"a = 1\nb ?\n": "line 2 is neither a comment, an option nor a block: b ?",
	} {
		if _, err := ReadReference(text); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
