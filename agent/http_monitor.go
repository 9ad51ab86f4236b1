package agent

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/logging"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// monitorPatience is how long one who follows the log may take to read what was
// sent: it would hold one of few places for ever.
const monitorPatience = 30 * time.Second

const monitorPath = "/v1/agent/monitor"

func (a *Agent) monitorEndpoints() []endpoint {
	return []endpoint{{"GET /v1/agent/monitor", a.monitor}}
}

// monitor streams the log until the client or the agent ends.
func (a *Agent) monitor(w http.ResponseWriter, r *http.Request) {
	listener, asJSON, err := a.listenTo(r)
	if err != nil {
		a.wrap(func(*http.Request) (reply, error) { return reply{}, err })(w, r)
		return
	}
	defer listener.Close()
	a.log.Debug("log is followed", "from", r.RemoteAddr)
	// The server's limits are for answers that end.
	answer := http.NewResponseController(w)
	_ = answer.SetReadDeadline(time.Time{}) // what does not know deadlines has none
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if asJSON {
		w.Header().Set("Content-Type", "application/x-ndjson")
	}
	w.WriteHeader(http.StatusOK)
	for over := false; ; {
		_ = answer.SetWriteDeadline(time.Now().Add(monitorPatience))
		for _, line := range listener.Take() {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
		if answer.Flush() != nil || over {
			return
		}
		select {
		case <-listener.Wake():
		case <-listener.Over():
			over = true // once more, for its last lines
		case <-r.Context().Done():
			return
		}
	}
}

// listenTo reads what a request wants to hear.
func (a *Agent) listenTo(r *http.Request) (listener *logging.Listener, asJSON bool, err error) {
	level := hclog.Info
	if text := r.URL.Query().Get("log_level"); text != "" {
		if !slices.Contains(api.LogLevels(), strings.ToLower(text)) {
			return nil, false, badRequest("parameter log_level: %q is not one of %s", registry.Shorten(text, maxQuoted), strings.Join(api.LogLevels(), ", "))
		}
		level = hclog.LevelFromString(text)
	}
	if asJSON, err = flag(r, "log_json"); err != nil {
		return nil, false, err
	}
	if listener, err = a.o.Logs.Listen(level, asJSON); err != nil {
		return nil, false, &api.Error{Code: http.StatusTooManyRequests, Message: err.Error()}
	}
	return listener, asJSON, nil
}
