package udp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/lenonet/leno/backend"
)

// stateVariable makes this binary a process that applies the state in it and runs until its
// standard input ends.
const stateVariable = "LENO_TEST_UDP_STATE"

func TestMain(m *testing.M) {
	if state := os.Getenv(stateVariable); state != "" {
		if err := serve(state); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func serve(encoded string) error {
	var state backend.State
	if err := json.Unmarshal([]byte(encoded), &state); err != nil {
		return err
	}
	b, err := Type().New(backend.Config{Network: "test", Link: testLink, Pools: pools, Logger: hclog.NewNullLogger()})
	if err != nil {
		return err
	}
	if _, err := b.Apply(context.Background(), state); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// start runs the host's backend in a separate process and returns a function that kills it.
func (h *host) start() (kill func()) {
	h.t.Helper()
	state, err := json.Marshal(h.state)
	if err != nil {
		h.t.Fatal(err)
	}
	cmd := exec.CommandContext(h.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), stateVariable+"="+string(state))
	if _, err := cmd.StdinPipe(); err != nil {
		h.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	inNS(h.t, h.ns, cmd.Start)
	killed := false
	kill = func() {
		if killed {
			return
		}
		killed = true
		if err := cmd.Process.Kill(); err != nil {
			h.t.Error(err)
		}
		_ = cmd.Wait() // reports that it was killed
	}
	h.t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		h.t.Fatalf("the process said %q, %v", line, err)
	}
	return kill
}

// TestKilledProcess checks that after kill -9 everything in the kernel stays, and the next process
// continues without reprogramming any of it.
func TestKilledProcess(t *testing.T) {
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
