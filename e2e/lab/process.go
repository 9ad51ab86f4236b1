package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A Process is a program running in a namespace. Its methods may be called concurrently and
// repeatedly.
type Process struct {
	Name string
	Log  string // path of the file with its standard output and error

	cmd  *exec.Cmd
	done chan struct{}
	err  error // result of Wait, valid once done is closed
}

// Start runs a program in the background. Its output goes to a file in the lab's directory, named
// after the namespace and the program. Close ends it.
func (n *Namespace) Start(command ...string) (*Process, error) {
	// Not the caller's context: the process outlives the call.
	cmd := program(context.Background(), command...)
	p := &Process{cmd: cmd, done: make(chan struct{})}
	name := strings.TrimPrefix(n.Name, prefix(n.lab.ID)) + "-" + filepath.Base(command[0])
	n.lab.mu.Lock()
	n.lab.logs[name]++
	p.Name = fmt.Sprintf("%s-%d", name, n.lab.logs[name])
	n.lab.mu.Unlock()

	p.Log = filepath.Join(n.lab.Dir, p.Name+".log")
	log, err := os.Create(p.Log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := n.start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	n.lab.mu.Lock()
	n.lab.processes = append(n.lab.processes, p)
	n.lab.mu.Unlock()
	go func() { // ends with the process, which Close waits for
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether the process is still running.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal. It is no error if the process has ended.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s to %s: %w", s, p.Name, err)
	}
	return nil
}

// SignalGroup sends a signal to the program and its children, except those that left its process
// group. It is no error if the group is empty.
func (p *Process) SignalGroup(s syscall.Signal) error {
	// Every program starts a session; the id of its process group is the program's process id.
	if err := syscall.Kill(-p.Pid(), s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %s to the group of %s: %w", s, p.Name, err)
	}
	return nil
}

// Wait blocks until the process has ended and returns an *exec.ExitError unless the exit code was
// 0.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s: %w", p.Name, ctx.Err())
	}
}

// WaitFor is like the package's WaitFor but gives up when the process ends. Its error contains the
// end of the process's output.
func (p *Process) WaitFor(ctx context.Context, what string, done func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-p.done:
			cancel(fmt.Errorf("%s ended", p.Name))
		case <-ctx.Done():
		}
	}()
	err := WaitFor(ctx, what, done)
	cancel(nil)
	<-watched
	if err != nil {
		return fmt.Errorf("%w; the end of the output of %s:\n%s", err, p.Name, p.tail(15))
	}
	return nil
}

// ExitCode returns the exit code of a process that has ended, or -1 if a signal ended it.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Stop asks the process to end and waits for it. If it must be killed, after three minutes or when ctx
// ends, Stop returns an error. Stop ignores the exit code.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	case <-time.After(3 * time.Minute):
	}
	return errors.Join(fmt.Errorf("%s did not end when asked to, killed; its log: %s", p.Name, p.Log), p.Kill())
}

// Kill ends the process with SIGKILL and waits for it.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Output returns what the process has printed so far.
func (p *Process) Output() string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// OutputFrom returns what the process has printed, except the given number of bytes at its beginning.
func (p *Process) OutputFrom(skip int) string {
	log, err := os.Open(p.Log)
	if err != nil {
		return err.Error()
	}
	defer log.Close()
	b, err := io.ReadAll(io.NewSectionReader(log, int64(skip), math.MaxInt64-int64(skip)))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// tail returns the last lines of the output, for error messages.
func (p *Process) tail(lines int) string {
	all := strings.Split(strings.TrimSpace(p.Output()), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
