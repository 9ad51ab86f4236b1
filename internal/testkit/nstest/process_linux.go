package nstest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// stateVariable has the state for a process that Start has started.
const stateVariable = "LENO_TEST_STATE"

// Serve makes this test binary the process that Start has started: it calls apply with the state and runs until its
// standard input ends. In any other process it does nothing, and served is false. TestMain calls it first.
func Serve(apply func(state string) error) (served bool, err error) {
	state := os.Getenv(stateVariable)
	if state == "" {
		return false, nil
	}
	if err := apply(state); err != nil {
		return true, err
	}
	if err := os.NewFile(3, "see start").Close(); err != nil {
		return true, err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return true, err
}

// Start runs this test binary in the namespace, where Serve gets the state, which is not empty. Once the state is applied,
// it returns a function that kills the process.
func (ns *NS) Start(state string) (kill func()) {
	ns.t.Helper()
	cmd := exec.CommandContext(ns.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), stateVariable+"="+state)
	if _, err := cmd.StdinPipe(); err != nil {
		ns.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		ns.t.Fatal(err)
	}
	if err := ns.start(cmd); err != nil {
		ns.t.Fatal(err)
	}
	killed := false
	kill = func() {
		if killed {
			return
		}
		killed = true
		if err := cmd.Process.Kill(); err != nil {
			ns.t.Error(err)
		}
		_ = cmd.Wait() // reports that it was killed
	}
	ns.t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		ns.t.Fatalf("the process said %q, %v", line, err)
	}
	return kill
}
