package cleanup

import (
	"errors"
	"testing"

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
	if _, err := cleanedIn(t, ns, dir, &swept{}, Options{}); !errors.Is(err, state.ErrLocked) {
		t.Errorf("cleaned up under an agent with another data_dir: %v", err)
	}
	must(t, unlock())
	_, err = cleanedIn(t, ns, dir, &swept{}, Options{})
	must(t, err)
}
