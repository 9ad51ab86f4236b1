package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// Copy writes what the agent answers to GET path to w as it comes, until it ends
// or ctx does: for what has no type here, such as profiles, and for streams, such
// as the log. The path has its query with it. Answers that are no success are an
// *Error as with every method.
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
		return c.failure(resp.StatusCode, data)
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("GET %s: read the answer: %w", path, err)
	}
	return nil
}
