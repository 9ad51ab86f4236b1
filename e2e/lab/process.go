package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/lenonet/leno/internal/testkit/process"
)

// A Process is a program running in a namespace. Its methods may be called concurrently and
// repeatedly.
type Process struct {
	*process.Process
	Name string
	Log  string // path of the file with its standard output and error
}

// Start runs a program in the background. Its output goes to a file in the lab's directory, named
// after the namespace and the program. Close ends it.
func (n *Namespace) Start(command ...string) (*Process, error) {
	// Not the caller's context: the process outlives the call.
	cmd := program(context.Background(), command...)
	p := &Process{}
	name := strings.TrimPrefix(n.Name, prefix(n.lab.ID)) + "-" + filepath.Base(command[0])
	n.lab.mu.Lock()
	n.lab.logs[name]++
	p.Name = fmt.Sprintf("%s-%d", name, n.lab.logs[name])
	n.lab.mu.Unlock()

	p.Log = filepath.Join(n.lab.Dir, p.Name+".log")
	n.prepare(cmd)
	var err error
	p.Process, err = process.StartOn(cmd, p.Log, func(start func(), _ <-chan struct{}) error { return n.onThread(start) })
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	n.lab.mu.Lock()
	n.lab.processes = append(n.lab.processes, p)
	n.lab.mu.Unlock()
	return p, nil
}

// SignalGroup sends a signal to the program and its children, except those that left its process
// group. It is no error if the group is empty.
func (p *Process) SignalGroup(s syscall.Signal) error {
	// Every program leads a process group, the id of which is the program's process id.
	if err := syscall.Kill(-p.Pid(), s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %s to the group of %s: %w", s, p.Name, err)
	}
	return nil
}

// WaitFor is like the package's WaitFor but gives up when the process ends. Its error contains the
// end of the process's output.
func (p *Process) WaitFor(ctx context.Context, what string, done func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-p.Done():
			cancel(fmt.Errorf("%s ended", p.Name))
		case <-ctx.Done():
		}
	}()
	err := WaitFor(ctx, what, done)
	cancel(nil)
	<-watched
	if err != nil {
		return fmt.Errorf("%w; the end of the output of %s:\n%s", err, p.Name, p.Tail(15))
	}
	return nil
}

// Stop asks the process to end and waits for it. If it must be killed, after three minutes or when ctx
// ends, Stop returns an error. Stop ignores the exit code.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
	case <-time.After(3 * time.Minute):
	}
	p.Kill()
	return fmt.Errorf("%s did not end when asked to, killed; its log: %s", p.Name, p.Log)
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
