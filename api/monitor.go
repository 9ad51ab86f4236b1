package api

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// Monitor says what to follow of an agent's log. The zero value is lines of text
// at the level info and above.
type Monitor struct {
	Level string // one of LogLevels, "" for info
	JSON  bool   // one JSON object a line
}

// LogLevels are the levels of a log, from the one that says most.
func LogLevels() []string { return []string{"trace", "debug", "info", "warn", "error"} }

// Monitor follows the agent's log (GET /v1/agent/monitor) from now on, at a level
// that is nobody else's. Lines can be read as they come, until ctx ends, the
// stream is closed, or the agent stops, which is io.EOF. Who reads too slowly
// finds a line that says how many were left out. The client's HTTPClient must have
// no time limit.
func (c *Client) Monitor(ctx context.Context, m Monitor) (io.ReadCloser, error) {
	values := url.Values{"log_json": {strconv.FormatBool(m.JSON)}}
	if m.Level != "" {
		values.Set("log_level", m.Level)
	}
	resp, err := c.send(ctx, http.MethodGet, "/v1/agent/monitor?"+values.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		data, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return nil, c.failure(resp.StatusCode, data)
	}
	return resp.Body, nil
}
