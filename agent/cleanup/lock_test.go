package cleanup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestRefusesBesideAnAgent: nothing is removed while an agent with another state directory runs.
func TestRefusesBesideAnAgent(t *testing.T) {
	ns, dir := nstest.New(t), littered(t)
	var unlock func() error
	var err error
	ns.Do(func() { unlock, err = state.LockHost() })
	must(t, err)
	for _, network := range []string{"", "default"} {
		if _, err := cleanedIn(t, ns, dir, &swept{}, Options{Network: network}); !errors.Is(err, state.ErrLocked) {
			t.Errorf("cleaned up network %q under an agent with another data_dir: %v", network, err)
		}
	}
	must(t, unlock())
	_, err = cleanedIn(t, ns, dir, &swept{}, Options{})
	must(t, err)
}

// TestAgentElsewhere: subnet files that an agent in another network namespace may have written stay until it ends, apart
// from one with this host's subnets.
func TestAgentElsewhere(t *testing.T) {
	ns, dir := nstest.New(t), littered(t)
	run := filepath.Join(dir, "run")
	must(t, os.Mkdir(run, 0o755))
	for name, subnet := range map[string]string{"default": "10.5.34.1/24", "blue": "10.6.1.1/24", "theirs": "10.7.1.1/24", ".theirs": "10.7.1.1/24"} {
		must(t, os.WriteFile(filepath.Join(run, name+".env"), []byte("LENO_SUBNET="+subnet+"\nLENO_MTU=1450\n"), 0o644))
	}
	must(t, os.Rename(filepath.Join(run, ".theirs.env"), filepath.Join(run, ".theirs.env.123")))
	pid := 4711
	o := Options{RunDir: run, AgentElsewhere: func(dir string) (int, bool) { return pid, pid != 0 && dir == run }}
	report, err := cleanedIn(t, ns, dir, &swept{}, o)
	must(t, err)
	kept := names(dir, report.Foreign)
	for _, want := range []string{"file run/blue.env of blue", "file run/theirs.env"} {
		if !slices.Contains(kept, want) {
			t.Errorf("foreign: %q", kept)
		}
	}
	if diff := cmp.Diff([]string{"/.theirs.env.123", "/blue.env", "/theirs.env"}, tree(t, run)); diff != "" {
		t.Errorf("what is there (-want +got):\n%s", diff)
	}
	pid = 0
	_, err = cleanedIn(t, ns, dir, &swept{}, o)
	must(t, err)
	if exists(run) {
		t.Errorf("left: %q", tree(t, run))
	}
}
