package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childVariable makes this test binary start a program and wait. Its value is the path of a log.
const childVariable = "LENO_TEST_PROCESS"

func TestMain(m *testing.M) {
	log := os.Getenv(childVariable)
	if log == "" {
		os.Exit(m.Run())
	}
	if _, err := Start(exec.Command("sh", "-c", "echo $$; exec sleep 1000"), log); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {}
}

func start(t *testing.T, log, script string) *Process {
	t.Helper()
	p, err := Start(exec.Command("sh", "-c", script), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// awaitOutput waits until the process has printed the text.
func awaitOutput(t *testing.T, p *Process, text string) {
	t.Helper()
	err := p.WaitFor(t.Context(), "output", func(context.Context) error {
		if !strings.Contains(p.Output(), text) {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func newLog(t *testing.T) string { return filepath.Join(t.TempDir(), "log") }

func TestOutputOfTheLastProcess(t *testing.T) {
	t.Parallel()
	log := newLog(t)
	for _, text := range []string{"first\n", "second\nthird\n"} {
		p, err := Start(exec.Command("printf", "%s", text), log)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := p.Output(); got != text {
			t.Errorf("output %q, want %q", got, text)
		}
		if got, want := p.Tail(1), strings.TrimSpace(text[strings.LastIndex(text[:len(text)-1], "\n")+1:]); got != want {
			t.Errorf("tail %q, want %q", got, want)
		}
	}
}

func TestEnd(t *testing.T) {
	t.Parallel()
	p := start(t, newLog(t), "exit 3")
	var exit *exec.ExitError
	if err := p.Wait(t.Context()); !errors.As(err, &exit) || p.ExitCode() != 3 || p.IsRunning() {
		t.Errorf("got %v, code %d, running %t", err, p.ExitCode(), p.IsRunning())
	}
	// None of these is an error after the end.
	if err := errors.Join(p.Signal(syscall.SIGHUP), p.Stop()); err != nil {
		t.Error(err)
	}
	p.Kill()
}

func TestWaitForGivesUp(t *testing.T) {
	t.Parallel()
	p := start(t, newLog(t), "echo reason; exit 1")
	err := p.WaitFor(t.Context(), "ever", func(context.Context) error { return errors.New("no") })
	if err == nil || !strings.Contains(err.Error(), "ended") || !strings.Contains(err.Error(), "reason") {
		t.Errorf("got %v, want one with the output", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p = start(t, newLog(t), "exec sleep 1000")
	if err := p.WaitFor(ctx, "ever", func(context.Context) error { return errors.New("no") }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	p := start(t, newLog(t), "trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 0.01; done")
	awaitOutput(t, p, "ready")
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	if state := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))[0]; state != "T" {
		t.Errorf("state %s, want T", state)
	}
	if err := p.Stop(); err != nil { // resumes it
		t.Fatal(err)
	}
	if !strings.Contains(p.Output(), "term") {
		t.Errorf("output %q", p.Output())
	}
}

func TestStopKills(t *testing.T) {
	t.Parallel()
	p := start(t, newLog(t), "trap '' TERM; echo ready; while :; do sleep 0.01; done")
	awaitOutput(t, p, "ready")
	if err := p.StopWithin(50 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "did not end") {
		t.Errorf("got %v", err)
	}
	if p.IsRunning() || p.ExitCode() != -1 {
		t.Errorf("running %t, code %d", p.IsRunning(), p.ExitCode())
	}
}

func TestCannotStart(t *testing.T) {
	t.Parallel()
	if _, err := Start(exec.Command("/does/not/exist"), newLog(t)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	refused := errors.New("refused")
	_, err := StartOn(exec.Command("true"), newLog(t), func(func(), <-chan struct{}) error { return refused })
	if !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
}

// The kernel kills the program when the process that started it is killed, and not when one of its other threads ends.
func TestDiesWithItsParent(t *testing.T) {
	t.Parallel()
	log := newLog(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+log)
	parent, err := Start(cmd, newLog(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(parent.Kill)
	var pid int
	err = parent.WaitFor(t.Context(), "the program's process id", func(context.Context) error {
		text, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	parent.Kill()
	for deadline := time.Now().Add(patience); ; time.Sleep(interval) {
		// Its new parent may leave it a zombie for a while.
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(text), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d survived its parent", pid)
		}
	}
}

// A program lives on when the goroutine that started it ends with its thread.
func TestOutlivesTheThreadOfStart(t *testing.T) {
	t.Parallel()
	var p *Process
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // without unlocking: the thread ends with the goroutine
		var err error
		p, err = Start(exec.Command("sleep", "1000"), newLog(t))
		ended <- err
	}()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	select {
	case <-p.Done():
		t.Error("it ended with the thread")
	case <-time.After(200 * time.Millisecond):
	}
}
