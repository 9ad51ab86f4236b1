package udp

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

func TestMain(m *testing.M) {
	served, err := nstest.Serve(applyState)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if !served {
		nstest.RunMoreAtOnce()
		goleak.VerifyTestMain(m)
	}
}

// applyState is what a process of this binary runs; see nstest.Serve.
func applyState(encoded string) error {
	var state backend.State
	if err := json.Unmarshal([]byte(encoded), &state); err != nil {
		return err
	}
	b, err := Type().New(backend.Config{Network: "test", Link: testLink, Pools: pools, Logger: hclog.NewNullLogger()})
	if err != nil {
		return err
	}
	_, err = b.Apply(context.Background(), state)
	return err
}

// start runs the host's backend in a separate process and returns a function that kills it.
func (h *host) start() (kill func()) {
	h.t.Helper()
	state, err := json.Marshal(h.state)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.ns.Start(string(state))
}

// TestKilledProcess checks that after kill -9 everything in the kernel stays, and the next process
// continues without reprogramming any of it.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	a, b := newHost(t, 4, 1, labPeer(4, 2)), newHost(t, 4, 2, labPeer(4, 1))
	join(a, b)
	b.apply()
	kill := a.start()
	ping(t, a.container, inner(2)[0])
	before, index := a.dump(), a.ns.Index(testLink)
	for range 3 {
		kill()
		if got := a.dump(); got != before {
			t.Fatalf("after kill -9\n%s\nwant\n%s", got, before)
		}
		if out, err := a.container.Try("ping -n -c 1 -W 0.2 " + inner(2)[0]); err == nil {
			t.Fatalf("answered without a process\n%s", out)
		}
		kill = a.start()
		ping(t, a.container, inner(2)[0])
		ping(t, b.container, inner(1)[1])
		if got := a.dump(); got != before || a.ns.Index(testLink) != index {
			t.Fatalf("after adoption\n%s\nwant\n%s", got, before)
		}
	}
}
