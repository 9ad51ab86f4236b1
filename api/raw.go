package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// Copy writes the agent's response to GET path to w as it arrives, until it ends or ctx does. It
// is for responses that have no type here, such as profiles, and for streams, such as the log. The
// path includes its query. A response that is not a success is an *Error, as with every method.
func (c *Client) Copy(ctx context.Context, path string, w io.Writer) error {
	resp, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		data, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		if err != nil {
			return fmt.Errorf("GET %s: read the answer: %w", path, err)
		}
		return failure(resp, data)
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("GET %s: read the answer: %w", path, err)
	}
	return nil
}
