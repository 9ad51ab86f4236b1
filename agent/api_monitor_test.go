package agent

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/httpapi"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry/memory"
)

func TestMonitor(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.level = "WARN"
		a.start().ready()
		text, objects := agenttest.FollowLog(t, a.client, api.Monitor{Level: "trace"}), agenttest.FollowLog(t, a.client, api.Monitor{JSON: true})
		a.agent.log.Named("udp").Trace("detail")
		a.agent.log.Info("state", "peers", 3)
		agenttest.AwaitLine(t, text, "[TRACE] leno.udp: detail")
		agenttest.AwaitLine(t, text, "[INFO]  leno: state: peers=3")
		var line map[string]any
		if got := agenttest.AwaitLine(t, objects, "state"); json.Unmarshal([]byte(got), &line) != nil || line["@level"] != "info" || line["peers"] != 3.0 {
			t.Error(got)
		}
		if got := a.said.With("state"); len(got) != 0 {
			t.Errorf("the agent's own level changed: %q", got)
		}
		// The stream goes on while the configuration changes, and ends with the agent.
		c := a.config
		c.Log.Level, c.Log.JSON = "ERROR", true
		must(t, a.agent.Reload(context.Background(), c))
		agenttest.AwaitLine(t, text, "configuration reloaded", "log_json", "log_level")
		began := time.Now()
		must(t, a.stop())
		if took := time.Since(began); took > httpapi.ShutdownTimeout {
			t.Errorf("the agent waited %s for the followers of its log", took)
		}
		for range text { // follow closes it when the stream ends
		}
	})
}
