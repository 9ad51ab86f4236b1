// Package process runs programs in the background of tests. They do not outlive the process that started them. It does
// not know which programs these are.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/internal/testkit/machine"
)

const (
	// patience limits every wait of this package. Only a failure takes that long.
	patience = 3 * time.Minute
	// interval is the time between two looks at a condition.
	interval = 20 * time.Millisecond
	// tailLines is the number of lines of output that an error quotes.
	tailLines = 30
)

// A Process is a program in the background. Its methods may be called concurrently and repeatedly.
type Process struct {
	name   string
	log    string
	logged int64 // size of the log when the process was started
	cmd    *exec.Cmd
	done   chan struct{}
	err    error // result of cmd.Wait, valid once done is closed
}

// A Thread calls start on a thread that stays until ended is closed: the kernel kills a process when the thread that
// started it ends. Thread itself may return earlier. It returns an error if it cannot call start.
type Thread func(start func(), ended <-chan struct{}) error

// Start starts a command with its output appended to the file log. The kernel kills it when this process ends in any
// way.
func Start(cmd *exec.Cmd, log string) (*Process, error) {
	return StartOn(cmd, log, func(start func(), ended <-chan struct{}) error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		start()
		<-ended
		return nil
	})
}

// StartOn is like Start and starts the command on a thread of the caller's choice, for example in another network
// namespace. If cmd.SysProcAttr is set, its Pdeathsig says what the kernel does when this process ends.
func StartOn(cmd *exec.Cmd, log string, thread Thread) (*Process, error) {
	machine.Declare()
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	p := &Process{name: cmd.Path, log: log, logged: info.Size(), cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = file, file
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	}
	started := make(chan error, 2) // one from each goroutine at most
	go func() {                    // ends with the process, which Stop and Kill wait for
		if err := thread(func() { started <- cmd.Start() }, p.done); err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		close(p.done)
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() { // ends with the process as well
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// IsRunning reports whether the process has not ended. A paused process runs.
func (p *Process) IsRunning() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Wait blocks until the process has ended, and returns an *exec.ExitError unless its exit code was 0.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s: %w", p.name, ctx.Err())
	}
}

// ExitCode returns the exit code of a process that has ended, or -1 if a signal ended it.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Signal sends a signal. It is no error if the process has ended.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s to %s: %w", s, p.name, err)
	}
	return nil
}

// Pause stops the process with SIGSTOP, and blocks until all of its threads have stopped. Until then, those that run
// already go on, which takes some time on a busy machine. Kill and Stop end a paused process.
func (p *Process) Pause() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, p.Pid(), nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Resume continues a paused process.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Stop asks the process to end and waits for it. It returns an error if the process must be killed, after some minutes.
// It ignores the exit code.
func (p *Process) Stop() error { return p.StopWithin(patience) }

// StopWithin is like Stop with the time after which the process is killed.
func (p *Process) StopWithin(limit time.Duration) error {
	if err := errors.Join(p.Signal(syscall.SIGTERM), p.Resume()); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(limit):
		p.Kill()
		return fmt.Errorf("%s did not end within %v when asked to; the end of its output:\n%s", p.name, limit, p.Tail(tailLines))
	}
}

// Kill ends the process with SIGKILL and waits for it. It may have ended already.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // the only error is that it has ended
	<-p.done
}

// WaitFor polls until condition returns nil, with a context that ends with ctx and with the process. It gives up when
// the process ends or after some minutes. The error then contains the end of the output.
func (p *Process) WaitFor(ctx context.Context, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("wait for %s: %s ended; the end of its output:\n%s", what, p.name, p.Tail(tailLines))
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w; the end of the output of %s:\n%s", what, ctx.Err(), err, p.name, p.Tail(tailLines))
		case <-time.After(interval):
		}
	}
}

// Output returns what the process has printed so far, or why that cannot be read.
func (p *Process) Output() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[min(p.logged, int64(len(text))):])
}

// Tail returns the last lines of Output.
func (p *Process) Tail(lines int) string {
	all := strings.Split(strings.TrimSpace(p.Output()), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
