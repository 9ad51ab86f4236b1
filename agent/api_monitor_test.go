package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/httpapi"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// follow returns the lines of an agent's log until the test ends.
func follow(t *testing.T, c *api.Client, m api.Monitor) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := c.Monitor(ctx, m)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(stream); scanner.Scan(); {
			select {
			case lines <- scanner.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		for range lines {
		}
		must(t, stream.Close())
	})
	return lines
}

// says returns the first line that contains all words.
func says(t *testing.T, lines <-chan string, words ...string) string {
	t.Helper()
	limit := time.After(2 * time.Minute)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatalf("the stream ended before %q", words)
			}
			missing := false
			for _, w := range words {
				missing = missing || !strings.Contains(line, w)
			}
			if !missing {
				return line
			}
		case <-limit:
			t.Fatalf("no line with %q", words)
		}
	}
}

func TestMonitor(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	a.level = "WARN"
	a.start().ready()
	client, err := api.New(api.Config{Address: a.config.HTTP.Address}) // the harness's client has a time limit
	must(t, err)
	text, objects := follow(t, client, api.Monitor{Level: "trace"}), follow(t, client, api.Monitor{JSON: true})
	a.agent.log.Named("udp").Trace("detail")
	a.agent.log.Info("state", "peers", 3)
	says(t, text, "[TRACE] leno.udp: detail")
	says(t, text, "[INFO]  leno: state: peers=3")
	var line map[string]any
	if got := says(t, objects, "state"); json.Unmarshal([]byte(got), &line) != nil || line["@level"] != "info" || line["peers"] != 3.0 {
		t.Error(got)
	}
	if got := a.said.with("state"); len(got) != 0 {
		t.Errorf("the agent's own level changed: %q", got)
	}
	// The stream goes on while the configuration changes, and ends with the agent.
	c := a.config
	c.Log.Level, c.Log.JSON = "ERROR", true
	must(t, a.agent.Reload(context.Background(), c))
	says(t, text, "configuration reloaded", "log_json", "log_level")
	began := time.Now()
	must(t, a.stop())
	if took := time.Since(began); took > httpapi.ShutdownTimeout {
		t.Errorf("the agent waited %s for the followers of its log", took)
	}
	for range text { // follow closes it when the stream ends
	}
}
