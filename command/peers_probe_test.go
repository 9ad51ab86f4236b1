package command

import (
	"slices"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

// The requested peers and counts reach the agent.
func TestProbeRequest(t *testing.T) {
	f := newFakeAgent(t)
	got := world{env: map[string]string{"LENO_ADDRESS": f.url}}.run("peers", "-probe", "-peer=host-b", "-peer", "host-c", "-count=7", "default")
	if got.code != cli.ExitDone || f.probed.Count != 7 || !slices.Equal(f.probed.Peers, []string{"host-b", "host-c"}) {
		t.Errorf("%+v, %+v", f.probed, got)
	}
}

// TestProbeExitCode: any loss fails the command, but not a host that does not respond because of
// its rules or because it is gone.
func TestProbeExitCode(t *testing.T) {
	way := func(path string, small, full, largest int) api.ProbedWay {
		w := probed(path, "10.5.34.0", "10.5.77.0", 1450)
		w.Small.Answered, w.Full.Answered, w.Largest = small, full, largest
		if small == 0 {
			w.Full.Sent = 0
		}
		return w
	}
	const over, under = api.PathOverlay, api.PathUnderlay
	unprobed := api.ProbedWay{Path: over, NotProbed: "left out"}
	for _, tt := range []struct {
		name          string
		held, reached bool
		ways          []api.ProbedWay
		finding       string // status of the finding, "" for none
		code          int
	}{
		{"all is well", true, true, []api.ProbedWay{way(over, 3, 3, 1450), way(under, 3, 3, 1450)}, "", cli.ExitDone},
		{"not reached", true, false, []api.ProbedWay{way(over, 0, 0, 0), way(under, 3, 3, 1450)}, "", cli.ExitFailed},
		{"full packets lost in the overlay", true, true, []api.ProbedWay{way(over, 3, 0, 1350), way(under, 3, 3, 1450)}, "", cli.ExitFailed},
		{"full packets lost in the underlay", true, true, []api.ProbedWay{way(over, 3, 3, 1450), way(under, 3, 0, 1400)}, "", cli.ExitFailed},
		{"one packet lost", true, true, []api.ProbedWay{way(over, 2, 3, 1450), way(under, 3, 3, 1450)}, "", cli.ExitFailed},
		{"one full packet lost", true, true, []api.ProbedWay{way(over, 3, 3, 1450), way(under, 3, 2, 1450)}, "", cli.ExitFailed},
		{"a lapsed host that is gone", false, false, []api.ProbedWay{way(over, 0, 0, 0), way(under, 0, 0, 0)}, api.FindingWarning, cli.ExitDone},
		{"a lapsed host that answers and loses some", false, true, []api.ProbedWay{way(over, 2, 3, 1450), way(under, 3, 3, 1450)}, "", cli.ExitFailed},
		{"echo requests filtered in the underlay", true, true, []api.ProbedWay{way(over, 3, 3, 1450), way(under, 0, 0, 0)}, "", cli.ExitDone},
		{"echo requests filtered in the overlay", true, true, []api.ProbedWay{way(over, 0, 0, 0), way(under, 3, 3, 1450)}, "", cli.ExitDone},
		{"left out", true, false, []api.ProbedWay{unprobed, way(under, 3, 3, 1450)}, "", cli.ExitFailed},
		{"a fault", false, false, []api.ProbedWay{way(over, 0, 0, 0), way(under, 3, 3, 1450)}, api.FindingFault, cli.ExitFailed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeAgent(t)
			f.probe.Peers = []api.PeerProbe{{Node: "host-b", Held: tt.held, Reached: tt.reached, Ways: tt.ways}}
			if tt.finding != "" {
				f.probe.Findings = []api.Finding{{Check: "port", Status: tt.finding, Tried: "t", Saw: "s", Do: "d"}}
			}
			for _, format := range []string{"table", "json"} {
				if got := (world{env: map[string]string{"LENO_ADDRESS": f.url}}).run("peers", "default", "-probe", "-format="+format); got.code != tt.code {
					t.Errorf("%s: exit %d, want %d:\n%s", format, got.code, tt.code, got.stdout)
				}
			}
		})
	}
}
