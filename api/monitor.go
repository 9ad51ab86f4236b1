package api

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// Monitor selects what to follow of an agent's log. The zero value means lines of text at level
// info and above.
type Monitor struct {
	Level string // one of LogLevels, "" for info
	JSON  bool   // one JSON object per line
}

// LogLevels returns the log levels, the most verbose first.
func LogLevels() []string { return []string{"trace", "debug", "info", "warn", "error"} }

// Monitor follows the agent's log from now on (GET /v1/agent/monitor), at a level of its own.
// Lines can be read as they arrive until ctx ends, the stream is closed, or the agent stops, which
// is io.EOF. A reader that is too slow gets a line with the number of lines left out. The client's
// HTTPClient must have no time limit.
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
		return nil, failure(resp, data)
	}
	return resp.Body, nil
}
