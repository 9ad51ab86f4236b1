package command

import (
	"slices"
	"testing"
)

// What is asked for gets to the agent.
func TestProbeRequest(t *testing.T) {
	f := newFakeAgent(t)
	got := world{env: map[string]string{"LENO_ADDRESS": f.url}}.run("peers", "-probe", "-peer=host-b", "-peer", "host-c", "-count=7", "default")
	if got.code != exitDone || f.probed.Count != 7 || !slices.Equal(f.probed.Peers, []string{"host-b", "host-c"}) {
		t.Errorf("%+v, %+v", f.probed, got)
	}
}
