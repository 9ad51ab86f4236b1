package command

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lenonet/leno/command/cli"
)

func TestMonitor(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "asked for "+r.URL.RequestURI())
	}))
	defer srv.Close()
	for _, tt := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"monitor", cli.ExitFailed, "asked for /v1/agent/monitor?log_json=false&log_level=info\n", "the agent ended the stream"},
		{"monitor -log-level=DEBUG -log-json", cli.ExitFailed, "asked for /v1/agent/monitor?log_json=true&log_level=DEBUG\n", "ended the stream"},
		{"monitor -log-level=debgu", cli.ExitUsage, "", `"debgu" is not one of trace, debug, info, warn, error`},
		{"monitor -log-level=loud", cli.ExitUsage, "", `"loud" is not one of trace, debug, info, warn, error`},
		{"monitor -log-level=", cli.ExitUsage, "", "-log-level"},
		{"monitor blue", cli.ExitUsage, "", "blue"},
		{"monitor -address=unix:///nowhere.sock", cli.ExitFailed, "", "no agent answers at unix:///nowhere.sock"},
	} {
		got := world{env: map[string]string{"LENO_ADDRESS": srv.URL}}.run(strings.Fields(tt.args)...)
		if got.code != tt.code || got.stdout != tt.stdout || !strings.Contains(got.stderr, tt.stderr) {
			t.Errorf("%s: %+v", tt.args, got)
		}
	}
}
