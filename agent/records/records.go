// Package records reports the records in the store that had to be skipped because they cannot be used: once in the log,
// and as one line in a health check.
package records

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// Limits for log lines about records that cannot be used.
const (
	maxLogged = 100 // lines a minute about one record each
	maxSums   = 5   // lines a minute with the number of the other records
)

// A Board logs the records that had to be skipped and reports them to the health check. It is safe for concurrent
// use.
type Board struct {
	report func(status, reason string)
	log    hclog.Logger
	now    func() time.Time

	mu     sync.Mutex
	bad    map[string][]registry.BadRecord // by the command that lists them, such as "lease list"
	logged map[registry.BadRecord]bool
	minute time.Time // start of the minute in which lines are counted
	lines  int       // in this minute, about one record each
	sums   int       // in this minute, with a number of records
}

// New returns a Board without records. It calls report with the status and the reason of the check after every Set.
func New(log hclog.Logger, report func(status, reason string)) *Board {
	return &Board{report: report, log: log, now: time.Now, bad: map[string][]registry.BadRecord{}}
}

// Set replaces the skipped records that `leno <list>` lists, for example `leno lease list`. It logs each new one once.
func (b *Board) Set(list string, bad []registry.BadRecord) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bad[list] = bad
	seen := map[registry.BadRecord]bool{}
	total, unsaid := 0, 0
	for _, list := range slices.Sorted(maps.Keys(b.bad)) {
		for _, r := range b.bad[list] {
			total++
			seen[r] = true
			if b.logged[r] {
				continue
			}
			if !b.mayLog() {
				unsaid++
				continue
			}
			r = r.Shortened()
			b.log.Warn("record skipped", "key", printed(r.Key), "error", r.Reason)
		}
	}
	b.logged = seen
	if unsaid > 0 {
		b.sums++
	}
	if unsaid > 0 && b.sums <= maxSums {
		b.log.Warn("more records skipped", "count", unsaid, "total", total)
	}
	b.report(b.verdict(total))
}

// Clear forgets all records and reports nothing.
func (b *Board) Clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bad, b.logged = map[string][]registry.BadRecord{}, nil
}

// mayLog counts a line and reports whether it may be logged. A client that keeps writing invalid records must not fill
// the log.
func (b *Board) mayLog() bool {
	if now := b.now(); now.Sub(b.minute) >= time.Minute {
		b.minute, b.lines, b.sums = now, 0, 0
	}
	b.lines++
	return b.lines <= maxLogged
}

// verdict returns the status and the reason of the check: one line of limited length, however many records there are.
func (b *Board) verdict(total int) (status, reason string) {
	if total == 0 {
		return api.Passing, "every record is usable"
	}
	var first registry.BadRecord
	var lists []string
	for _, list := range slices.Sorted(maps.Keys(b.bad)) {
		if len(b.bad[list]) > 0 {
			lists = append(lists, "`leno "+list+"`")
			first = cmp.Or(first, b.bad[list][0].Shortened())
		}
	}
	records := "records"
	if total == 1 {
		records = "record"
	}
	return api.Warning, fmt.Sprintf("%d %s skipped (see %s), the first %s: %s",
		total, records, strings.Join(lists, " and "), printed(first.Key), first.Reason)
}

// printed returns a key, quoted if it contains unprintable or escaped characters.
func printed(key string) string {
	if quoted := strconv.Quote(key); quoted != `"`+key+`"` {
		return quoted
	}
	return key
}
