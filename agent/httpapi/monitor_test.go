package httpapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
)

func TestMonitorRefuses(t *testing.T) {
	a := onSocket(t)
	for query, want := range map[string]string{
		"log_level=loud":           `parameter log_level: "loud" is not one of trace, debug, info, warn, error`,
		"log_level=off":            "log_level",
		"log_json=perhaps":         "log_json",
		"log_level=x&log_json=yes": "log_level",
	} {
		if code, body := a.request("GET", "/v1/agent/monitor?"+query, ""); code != http.StatusBadRequest || !strings.Contains(strings.ReplaceAll(body, `\"`, `"`), want) {
			t.Errorf("%s: %d %s", query, code, body)
		}
	}
	_, err := a.client.Monitor(context.Background(), api.Monitor{Level: "loud"})
	agenttest.WantCode(t, "a level there is not", err, http.StatusBadRequest, "log_level", "debug")

	var open []io.Closer
	for {
		stream, err := a.client.Monitor(context.Background(), api.Monitor{})
		if err != nil {
			agenttest.WantCode(t, "one too many", err, http.StatusTooManyRequests, "16 listeners")
			break
		}
		open = append(open, stream)
	}
	for _, stream := range open {
		must(t, stream.Close())
	}
	agenttest.Eventually(t, func() error { // their places are free again
		stream, err := a.client.Monitor(context.Background(), api.Monitor{})
		if err == nil {
			err = stream.Close()
		}
		return err
	})
}

// TestMonitorOutlastsLimits: the limits of the server are for answers that end, and a follower of the log that does not
// read holds up no one else.
func TestMonitorOutlastsLimits(t *testing.T) {
	a := newHost(t, nil)
	server := httptest.NewUnstartedServer(a.prepare().routes())
	server.Config.ReadTimeout, server.Config.WriteTimeout = 50*time.Millisecond, 50*time.Millisecond
	server.Start()
	t.Cleanup(server.Close) // it waits for its clients
	client, err := api.New(api.Config{Address: server.URL})
	must(t, err)
	lines := agenttest.FollowLog(t, client, api.Monitor{})
	limit := time.NewTimer(200 * time.Millisecond)
	<-limit.C
	a.server.log.Info("after the limits")
	agenttest.AwaitLine(t, lines, "after the limits")

	began := time.Now()
	for i := range 20_000 { // more than connections hold
		a.server.log.Info(strings.Repeat("much ", 100), "number", i)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("logging waited for a listener: %s", took)
	}
	got := agenttest.AwaitLine(t, lines, "lines were lost here")
	var lost int
	if _, err := fmt.Sscanf(got[strings.Index(got, "lost="):], "lost=%d", &lost); err != nil || lost == 0 {
		t.Errorf("%s: %v", got, err)
	}
}
