package examine

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMissingCNI(t *testing.T) {
	const task = "/var/lib/nomad/alloc/6c0a/agent/local"
	const other, leno = `{"type": "bridge"}`, `{"plugins": [{"type": "leno-cni", "network": "default"}]}`
	for _, tt := range []struct {
		name, task string
		files      map[string]string
		missing    bool
	}{
		{"no job of Nomad", "", nil, false},
		{"in a chroot", "/local", nil, false},
		{"no directory", task, nil, true},
		{"another network", task, map[string]string{"config/other.conflist": other}, true},
		{"a network of leno", task, map[string]string{"config/other.conflist": other, "config/leno.conflist": leno}, false},
		{"in the second directory", task, map[string]string{"config/other.conflist": other, "net.d/leno.conflist": leno}, false},
		{"attached with another configuration", task, map[string]string{"records/a": "{}"}, false},
		{"unreadable", task, map[string]string{"config/folder/x": ""}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			dirs := []string{filepath.Join(dir, "config"), filepath.Join(dir, "net.d")}
			got := missingCNI(func(name string) string { return map[string]string{"NOMAD_TASK_DIR": tt.task}[name] }, dirs,
				filepath.Join(dir, "records"))
			if (len(got) > 0) != tt.missing {
				t.Errorf("got %q", got)
			}
		})
	}
}
