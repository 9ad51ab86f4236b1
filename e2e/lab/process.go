package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Process is a program running in a namespace. Its methods may be called
// concurrently and repeated.
type Process struct {
	Name string
	Log  string // path of the file with its standard output and error

	cmd  *exec.Cmd
	done chan struct{}
	err  error // of Wait, once done is closed
}

// Start runs a program in the background. Its output goes to a file of its own
// in the lab's directory, named for the namespace and the program. Close ends
// it.
func (n *Namespace) Start(command ...string) (*Process, error) {
	// Background: it outlives the call.
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

// Pid is its process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running says whether it has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal. A process that has ended is no error.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s to %s: %w", s, p.Name, err)
	}
	return nil
}

// SignalGroup sends a signal to the program and to what it started, unless that
// made itself independent. Nobody there is no error.
func (p *Process) SignalGroup(s syscall.Signal) error {
	// Every program begins a session, whose first group has its number.
	if err := syscall.Kill(-p.Pid(), s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %s to the group of %s: %w", s, p.Name, err)
	}
	return nil
}

// Wait waits for the end and returns an *exec.ExitError unless the exit code
// was 0.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s: %w", p.Name, ctx.Err())
	}
}

// WaitFor is the package's WaitFor, given up when the process ends. Its error
// carries the end of the process's output.
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

// ExitCode is that of a process that ended, -1 when a signal ended it.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Stop asks it to end and waits. It is an error that it has to be killed,
// after a minute or when ctx ends; the exit code is not looked at.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	case <-time.After(time.Minute):
	}
	return errors.Join(fmt.Errorf("%s did not end when asked to, killed; its log: %s", p.Name, p.Log), p.Kill())
}

// Kill ends it with SIGKILL and waits.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Output is what it has printed so far.
func (p *Process) Output() string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// tail is the end of the output, for error messages.
func (p *Process) tail(lines int) string {
	all := strings.Split(strings.TrimSpace(p.Output()), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
