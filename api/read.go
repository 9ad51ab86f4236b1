package api

import (
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
	// all at once.
	Wait time.Duration
}

// query is a read as the query of a URL, "" for none.
func query(reads []Read) string {
	values := url.Values{}
	for _, r := range reads {
		values = url.Values{}
		if r.Index > 0 {
			values.Set("index", strconv.FormatUint(r.Index, 10))
		}
		if r.Wait > 0 {
			values.Set("wait", r.Wait.String())
		}
	}
	if len(values) == 0 {
		return ""
	}
	return "?" + values.Encode()
}
