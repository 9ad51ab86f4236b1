// Package tools runs scripts of tools/ on machines that lack what the scripts need.
package tools

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/machine"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// run runs a copy of a script in a directory, next to one of tools/needs and other scripts provided by the test, and with
// the test's programs in bin/ first on the PATH. It returns the script's output.
func run(t *testing.T, dir, script string, others map[string]string, args ...string) (said string, err error) {
	t.Helper()
	machine.Declare()
	for name, text := range others {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), programs.Write(path, []byte("#!/bin/bash\n"+text+"\n"))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{script, "needs"} {
		content, err := os.ReadFile("../../tools/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if err := programs.Write(filepath.Join(dir, "tools", name), content); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("bash", append([]string{filepath.Join(dir, "tools", script)}, args...)...)
	path := dir + "/bin"
	if script != "setup" { // setup checks what is installed
		path += ":" + os.Getenv("PATH")
	}
	cmd.Env = append(os.Environ(), "PATH="+path, "LENO_TEST_AGAIN=", "LENO_TEST_FLAKY=") // .ci/run sets both
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestTestEnds checks that the programs that `make test` starts in the background end when it
// fails.
func TestTestEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	said, err := run(t, dir, "test", map[string]string{
		"tools/setup":  "",
		"tools/asroot": `[[ $1 == -check ]] || exec "$@"`,
		"tools/site":   `sleep 300 & echo $! >site; mv site sleeps; wait`,
		"tools/get":    "",
		"bin/go": `[[ $1 != list ]] || { printf "github.com/lenonet/leno/e2e/%s\n" site store; exit; }
			until [[ -e sleeps ]]; do sleep 0.1; done; echo "does not compile" >&2; exit 1`,
	}, "./e2e/site", "./e2e/store")
	if err == nil || !strings.Contains(said, "does not compile") {
		t.Errorf("%v\n%s", err, said)
	}
	text, err := os.ReadFile(filepath.Join(dir, "sleeps"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(state), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("it still runs: %s", state)
		}
	}
}

// TestSetupWithoutNetwork checks that the script names what apt cannot install and does nothing
// else.
func TestSetupWithoutNetwork(t *testing.T) {
	t.Parallel()
	said, err := run(t, t.TempDir(), "setup", map[string]string{
		"tools/asroot": `[[ $1 == -check ]] || exec "$@"`,
		"bin/go":       "",
		"bin/apt-get":  `echo "Temporary failure resolving" >&2; exit 100`,
		"bin/dirname":  `echo "${1%/*}"`, // the PATH has nothing else, so no git
		"bin/env":      `while [[ $1 == *=* ]]; do export "$1"; shift; done; exec "$@"`,
		"bin/sh":       `exec /bin/bash "$@"`,
	}, "build")
	if err != nil || !strings.Contains(said, "Temporary failure resolving\nsetup: not installed, apt says why above: git\n") {
		t.Errorf("%v\n%s", err, said)
	}
}
