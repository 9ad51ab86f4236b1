package agent

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

func TestSystemd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	var said []string
	until := func(words string) {
		t.Helper()
		must(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		buffer := make([]byte, 4096)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				t.Fatalf("waiting for %q after %q: %v", words, said, err)
			}
			said = append(said, string(buffer[:n]))
			if strings.Contains(said[len(said)-1], words) {
				return
			}
		}
	}
	ready := func() int { return strings.Count(strings.Join(said, "\n"), "READY=1") }
	a := newHost(t, memory.New(), "a")
	a.placeErr = errors.New("no interface fits")
	a.start()
	until("no interface fits")
	if ready() != 0 {
		t.Errorf("ready at once: %q", said)
	}
	a.move(a.place.Addrs, nil)
	until("READY=1")
	a.recorder.setFail(errors.New("no such device"))
	a.kick()
	until("no such device")
	a.recorder.setFail(nil)
	a.check(health.Routes, api.Passing)
	a.end()
	until("STOPPING=1")
	if ready() != 1 {
		t.Errorf("ready %d times: %q", ready(), said)
	}
	must(t, a.wait())
}
