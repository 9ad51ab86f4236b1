package api

import (
	"cmp"
	"context"
	"net/url"
	"strconv"
	"time"
)

// Read makes a read block until there is a change. The zero value does not block. If several are
// given to one call, the last one applies.
type Read struct {
	// Index is the index of the response that the caller already has: the read blocks until the
	// agent has another one. With 0 the agent responds at once.
	Index uint64

	// Wait bounds how long the read blocks; after that the agent returns the old response with the
	// old index. 0 means the agent's default, 5 min; more than 10 min means 10 min. The agent adds
	// up to a sixteenth so that readers do not all return at once. If the context, or the Timeout
	// of Config.HTTPClient, ends earlier, the client asks the agent to respond in time.
	Wait time.Duration
}

const (
	defaultWait = 5 * time.Minute // the agent's
	// inTime is the fraction of the remaining time that a read may wait: the agent adds up to a
	// sixteenth, and the response has to arrive.
	inTime = 0.9
)

// query returns the URL query of the last read, "" for none.
func (c *Client) query(ctx context.Context, reads []Read) string {
	if len(reads) == 0 {
		return ""
	}
	r := reads[len(reads)-1]
	values := url.Values{}
	if r.Index > 0 {
		values.Set("index", strconv.FormatUint(r.Index, 10))
		if left, ends := c.left(ctx); ends && time.Duration(inTime*float64(left)) < cmp.Or(r.Wait, defaultWait) {
			r.Wait = max(time.Duration(inTime*float64(left)).Truncate(time.Millisecond), time.Millisecond)
		}
	}
	if r.Wait > 0 {
		values.Set("wait", r.Wait.String())
	}
	if len(values) == 0 {
		return ""
	}
	return "?" + values.Encode()
}

// left returns how long a request may take; false means without limit.
func (c *Client) left(ctx context.Context) (time.Duration, bool) {
	until, ends := ctx.Deadline()
	left := time.Until(until)
	if c.http.Timeout > 0 && (!ends || c.http.Timeout < left) {
		return c.http.Timeout, true
	}
	return left, ends
}
