package main

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
)

// A process is a program in the background. It does not outlive this one.
type process struct {
	cmd  *exec.Cmd
	log  string // path of the file with its output
	done chan struct{}
}

func startProcess(log string, command ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{cmd: exec.Command(command[0], command[1:]...), log: log, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() { // ends with the process, which kill and stop wait for
		// The parent-death signal refers to the thread that started the process, so the thread must
		// stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// waitFor polls until done returns nil, for at most a minute. It gives up when the process ends.
func (p *process) waitFor(ctx context.Context, what string, done func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := done(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("wait for %s: it ended; its output:\n%s", what, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w; the end of its output:\n%s", what, ctx.Err(), err, p.tail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (p *process) tail() string {
	text, _ := os.ReadFile(p.log) // the file only completes the message
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// stop asks the process to end, and kills it after 10 s.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(10 * time.Second):
		p.kill()
		return fmt.Errorf("%s did not end when asked to", p.cmd.Path)
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.done
}
