package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serve stands for the guest agent of a machine. Each connection gets the answer of a request from
// before first. A program prints its input, and its name as an error; "endless" does not end.
func serve(t *testing.T) *agent {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			answer(conn)
		}
	}()
	a := &agent{path: path}
	t.Cleanup(func() {
		a.close()
		listener.Close()
		<-done
	})
	return a
}

func answer(conn net.Conn) {
	defer conn.Close()
	fmt.Fprintf(conn, "{\"return\": 1}\n\xff{\"return\": 2}\n")
	var path string
	var input []byte
	for r := bufio.NewScanner(conn); r.Scan(); {
		var request struct {
			Execute   string
			Arguments struct {
				ID    uint64
				Path  string
				Input []byte `json:"input-data"`
			}
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(r.Text(), "\xff")), &request); err != nil {
			return
		}
		switch arguments := request.Arguments; {
		case request.Execute == "guest-sync-delimited":
			fmt.Fprintf(conn, "\xff{\"return\": %d}\n", arguments.ID)
		case request.Execute == "guest-exec" && arguments.Path == "none":
			fmt.Fprintln(conn, `{"error": {"class": "GenericError", "desc": "no such program"}}`)
		case request.Execute == "guest-exec":
			path, input = arguments.Path, arguments.Input
			fmt.Fprintln(conn, `{"return": {"pid": 7}}`)
		case request.Execute == "guest-exec-status" && path == "endless":
			fmt.Fprintln(conn, `{"return": {"exited": false}}`)
		case request.Execute == "guest-exec-status":
			status, _ := json.Marshal(map[string]any{"return": map[string]any{
				"exited": true, "exitcode": 3, "out-data": input, "err-data": []byte(path),
			}})
			fmt.Fprintf(conn, "%s\n", status)
		default:
			fmt.Fprintln(conn, `{"return": {}}`)
		}
	}
}

func TestAgent(t *testing.T) {
	t.Parallel()
	a := serve(t)
	if err := a.ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := a.exec(t.Context(), []byte("typed"), "program", "argument")
	if want := (result{"typed", "program", 3}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	var refused *agentError
	if _, err := a.exec(t.Context(), nil, "none"); !errors.As(err, &refused) || refused.Desc != "no such program" {
		t.Errorf("a program that does not exist: %v", err)
	}
	limited, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.exec(limited, nil, "endless"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a program that does not end: %v", err)
	}
	// After a machine's reboot the connection is a new one, whose first answers are old.
	a.close()
	if got, err := a.exec(t.Context(), nil, "program"); err != nil || got.code != 3 {
		t.Errorf("on a new connection: %+v, %v", got, err)
	}
}

func TestAgentOff(t *testing.T) {
	t.Parallel()
	a := &agent{path: filepath.Join(t.TempDir(), "agent.sock")}
	if _, err := a.exec(t.Context(), nil, "true"); err == nil {
		t.Error("a machine that is off executed a program")
	}
}
