package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"
)

// An agent is the connection to the QEMU guest agent of a machine: JSON over a serial port of
// virtio, which works without a network and while the machine's firewall drops everything. Its
// methods may be called concurrently.
type agent struct {
	path string // of the socket that QEMU listens on

	mu     sync.Mutex
	conn   net.Conn // nil before the first call and after a call that failed
	reader *bufio.Reader
}

// delimiter precedes the answer to guest-sync-delimited. It is in no JSON.
const delimiter = 0xff

// A result is what a program in the machine has printed, and its exit code: -1 if a signal ended it.
type result struct {
	stdout, stderr string
	code           int
}

// ping asks the agent for a sign of life, and gives up after a few seconds: requests before the
// agent runs may get lost.
func (a *agent) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return a.call(ctx, "guest-ping", nil, nil)
}

// exec executes a program and waits for its end.
func (a *agent) exec(ctx context.Context, input []byte, command ...string) (result, error) {
	pid, err := a.launch(ctx, input, command...)
	if err != nil {
		return result{}, err
	}
	began := time.Now()
	for {
		var status struct {
			Exited   bool   `json:"exited"`
			ExitCode int    `json:"exitcode"`
			Signal   int    `json:"signal"`
			Stdout   []byte `json:"out-data"`
			Stderr   []byte `json:"err-data"`
			CutOut   bool   `json:"out-truncated"`
			CutErr   bool   `json:"err-truncated"`
		}
		if err := a.call(ctx, "guest-exec-status", map[string]any{"pid": pid}, &status); err != nil {
			if ctx.Err() != nil {
				err = errors.Join(context.Cause(ctx), a.end(pid))
			}
			return result{}, err
		}
		if status.Exited {
			r := result{string(status.Stdout), string(status.Stderr), status.ExitCode}
			if status.Signal != 0 {
				r.code = -1
			}
			if status.CutOut || status.CutErr {
				return r, errors.New("the program printed more than the guest agent keeps, 16 MiB")
			}
			return r, nil
		}
		select {
		case <-ctx.Done():
			return result{}, errors.Join(context.Cause(ctx), a.end(pid))
		case <-time.After(min(max(time.Since(began)/10, 10*time.Millisecond), 250*time.Millisecond)):
		}
	}
}

// start executes a program without waiting for its end.
func (a *agent) start(ctx context.Context, command ...string) error {
	_, err := a.launch(ctx, nil, command...)
	return err
}

// launch starts a program and returns its process id in the machine.
func (a *agent) launch(ctx context.Context, input []byte, command ...string) (int, error) {
	arguments := map[string]any{
		"path": command[0], "arg": command[1:], "capture-output": true,
		"env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"},
	}
	if input != nil {
		arguments["input-data"] = input
	}
	var started struct {
		Pid int `json:"pid"`
	}
	err := a.call(ctx, "guest-exec", arguments, &started)
	return started.Pid, err
}

// end kills a program whose caller's context has ended.
func (a *agent) end(pid int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return a.start(ctx, "kill", "-KILL", strconv.Itoa(pid))
}

// close ends the connection. The next call opens another one.
func (a *agent) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop()
}

func (a *agent) drop() {
	if a.conn != nil {
		a.conn.Close()
		a.conn = nil
	}
}

// call sends a command and reads the answer into reply, unless that is nil.
func (a *agent) call(ctx context.Context, command string, arguments, reply any) (err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	fresh := a.conn == nil
	if fresh {
		if a.conn, err = new(net.Dialer).DialContext(ctx, "unix", a.path); err != nil {
			a.conn = nil
			return err
		}
		a.reader = bufio.NewReader(a.conn)
	}
	conn := a.conn
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		// After an answer that did not arrive, or a deadline, the connection is of no use.
		if !stop() || err != nil && !errors.As(err, new(*agentError)) {
			a.drop()
		}
	}()
	if fresh {
		if err := a.synchronize(); err != nil {
			return fmt.Errorf("guest agent: %w", err)
		}
	}
	if err := a.send(nil, command, arguments); err != nil {
		return fmt.Errorf("guest agent: %w", err)
	}
	return a.receive(reply)
}

// synchronize skips the answers to requests of earlier connections.
func (a *agent) synchronize() error {
	id := rand.Uint64N(1 << 50) // JSON numbers are exact up to 2^53
	if err := a.send([]byte{delimiter}, "guest-sync-delimited", map[string]any{"id": id}); err != nil {
		return err
	}
	for {
		if _, err := a.reader.ReadBytes(delimiter); err != nil {
			return err
		}
		var got uint64
		if err := a.receive(&got); err == nil && got == id {
			return nil
		} else if err != nil && !errors.As(err, new(*agentError)) {
			return err
		}
	}
}

func (a *agent) send(before []byte, command string, arguments any) error {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	text, err := json.Marshal(request)
	if err != nil {
		return err
	}
	_, err = a.conn.Write(append(append(before, text...), '\n'))
	return err
}

func (a *agent) receive(reply any) error {
	line, err := a.reader.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("guest agent: %w", err)
	}
	var answer struct {
		Return json.RawMessage `json:"return"`
		Error  *agentError     `json:"error"`
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return fmt.Errorf("guest agent: %w in %q", err, line)
	}
	if answer.Error != nil {
		return answer.Error
	}
	if reply == nil {
		return nil
	}
	return json.Unmarshal(answer.Return, reply)
}

// An agentError is a request that the guest agent refused, for example to execute a program that
// does not exist.
type agentError struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *agentError) Error() string { return "guest agent: " + e.Desc }
