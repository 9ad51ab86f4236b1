package api

import (
	"cmp"
	"context"
	"net/url"
	"strconv"
	"time"
)

// Read makes a read block until there is news. The zero value does not block.
// Of several given to one call the last counts.
type Read struct {
	// Index is the one of the answer the caller has: the read blocks until the
	// agent has another. 0 answers at once.
	Index uint64

	// Wait is how long it blocks at most, after which the answer is the old one
	// under the old index. 0 is the agent's default, 5 min; more than 10 min is
	// 10 min. The agent adds up to a sixteenth, so that readers do not come back
	// all at once. Where the context, or the Timeout of Config.HTTPClient, ends
	// before that, the agent is asked to answer in time.
	Wait time.Duration
}

const (
	defaultWait = 5 * time.Minute // the agent's
	// inTime is the part of the time left that a read may wait: the agent adds a
	// sixteenth, and the answer has to come.
	inTime = 0.9
)

// query is a read as the query of a URL, "" for none.
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

// left is how long a request may take; false for any time.
func (c *Client) left(ctx context.Context) (time.Duration, bool) {
	until, ends := ctx.Deadline()
	left := time.Until(until)
	if c.http.Timeout > 0 && (!ends || c.http.Timeout < left) {
		return c.http.Timeout, true
	}
	return left, ends
}
