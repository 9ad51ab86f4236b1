package ports

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// childVariable makes this test binary print ports until its standard input ends.
const childVariable = "LENO_TEST_PORTS"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	ports, err := Free(3 * blockSize)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(ports)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

// Several calls at once and several processes that start at the same time get different ports.
func TestDifferent(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	note := func(who string, ports string) {
		t.Helper()
		for _, port := range strings.Fields(strings.Trim(ports, "[]\n")) {
			if other := seen[port]; other != "" {
				t.Errorf("%s and %s have port %s", who, other, port)
			}
			seen[port] = who
		}
	}
	var outputs []*bufio.Reader
	for range 4 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"=1")
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = stdin.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
		outputs = append(outputs, bufio.NewReader(stdout))
	}
	var wg sync.WaitGroup
	results := make([][]int, 8)
	for i := range results {
		wg.Go(func() {
			var err error
			if results[i], err = Free(7); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, ports := range results {
		note(fmt.Sprintf("call %d", i), fmt.Sprint(ports))
	}
	for i, output := range outputs {
		line, err := output.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		note(fmt.Sprintf("process %d", i), line)
	}
	if want := 8*7 + 4*3*blockSize; len(seen) != want {
		t.Errorf("%d different ports, want %d", len(seen), want)
	}
}

// A port that another program uses is not free: for TCP or UDP, on one address or on all.
func TestIsFree(t *testing.T) {
	t.Parallel()
	ports, err := Free(4)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ network, host string }{{"tcp", "127.0.0.1"}, {"tcp", ""}, {"udp", "127.0.0.1"}, {"udp", ""}} {
		address := fmt.Sprintf("%s:%d", c.host, ports[i])
		if !isFree(ports[i]) {
			t.Errorf("%s %s is not free before it is used", c.network, address)
		}
		if c.network == "tcp" {
			l, err := net.Listen(c.network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		} else {
			l, err := net.ListenPacket(c.network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		}
		if isFree(ports[i]) {
			t.Errorf("%s %s is free while it is used", c.network, address)
		}
	}
}
