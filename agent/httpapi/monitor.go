package httpapi

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/logging"
	"github.com/lenonet/leno/api"
)

// monitorPatience is how long a client that follows the log may take to read what was sent. Otherwise it could hold one
// of the few places for ever.
const monitorPatience = 30 * time.Second

const monitorPath = "/v1/agent/monitor"

// monitor streams the log until the client or the agent ends.
func (h agentHandlers) monitor(w http.ResponseWriter, r *http.Request) {
	listener, asJSON, err := h.listenToLog(r)
	if err != nil {
		h.fail(w, err)
		return
	}
	defer listener.Close()
	h.log.Debug("log monitor connected", "from", r.RemoteAddr)
	answer := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if asJSON {
		w.Header().Set("Content-Type", "application/x-ndjson")
	}
	w.WriteHeader(http.StatusOK)
	for over := false; ; {
		_ = answer.SetWriteDeadline(time.Now().Add(monitorPatience)) // the server's limit is for answers that end
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

// listenToLog reads the parameters of a request and starts to listen.
func (h agentHandlers) listenToLog(r *http.Request) (listener *logging.Listener, asJSON bool, err error) {
	level := hclog.Info
	if text := r.URL.Query().Get("log_level"); text != "" {
		if !slices.Contains(api.LogLevels(), strings.ToLower(text)) {
			return nil, false, badRequest("parameter log_level: %q is not one of %s",
				quoteText(text), strings.Join(api.LogLevels(), ", "))
		}
		level = hclog.LevelFromString(text)
	}
	if asJSON, err = flag(r, "log_json"); err != nil {
		return nil, false, err
	}
	if listener, err = h.logs.Listen(level, asJSON); err != nil {
		return nil, false, api.Errorf(http.StatusTooManyRequests, "%v", err)
	}
	return listener, asJSON, nil
}
