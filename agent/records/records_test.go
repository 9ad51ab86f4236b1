package records

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// boardUnderTest returns a board, its log, the status and reason it reported last, and its clock.
func boardUnderTest() (b *Board, log *bytes.Buffer, said *[2]string, now *time.Time) {
	log, said, now = &bytes.Buffer{}, new([2]string), new(time.Time)
	*now = time.Unix(1_000_000, 0)
	b = New(hclog.New(&hclog.LoggerOptions{Output: log}), func(status, reason string) {
		*said = [2]string{status, reason}
	})
	b.now = func() time.Time { return *now }
	return b, log, said, now
}

func TestBoard(t *testing.T) {
	b, log, said, _ := boardUnderTest()
	lease := registry.BadRecord{Key: "leno/leases/n/x", Reason: "invalid: nonsense"}
	steering := registry.BadRecord{Key: "leno/leases/n/\x1b[2J\u202e\n", Reason: "invalid: more"}
	reservation := registry.BadRecord{Key: "leno/reservations/n/y", Reason: "invalid: else"}
	for _, step := range []struct {
		list           string
		bad            []registry.BadRecord
		status, reason string
		logged         int // lines logged in this step
	}{
		{"lease list", nil, api.Passing, "every record is usable", 0},
		{"lease list", []registry.BadRecord{lease}, api.Warning,
			"1 record skipped (see `leno lease list`), the first leno/leases/n/x: invalid: nonsense", 1},
		{"lease list", []registry.BadRecord{lease}, api.Warning,
			"1 record skipped (see `leno lease list`), the first leno/leases/n/x: invalid: nonsense", 0},
		{"reservation list", []registry.BadRecord{reservation}, api.Warning,
			"2 records skipped (see `leno lease list` and `leno reservation list`), " +
				"the first leno/leases/n/x: invalid: nonsense", 1},
		{"lease list", nil, api.Warning,
			"1 record skipped (see `leno reservation list`), the first leno/reservations/n/y: invalid: else", 0},
		{"lease list", []registry.BadRecord{steering}, api.Warning,
			"2 records skipped (see `leno lease list` and `leno reservation list`), " +
				"the first \"leno/leases/n/\\x1b[2J\\u202e\\n\": invalid: more", 1},
		{"lease list", []registry.BadRecord{lease}, api.Warning,
			"2 records skipped (see `leno lease list` and `leno reservation list`), " +
				"the first leno/leases/n/x: invalid: nonsense", 1},
		{"lease list", nil, api.Warning,
			"1 record skipped (see `leno reservation list`), the first leno/reservations/n/y: invalid: else", 0},
		{"reservation list", nil, api.Passing, "every record is usable", 0},
	} {
		log.Reset()
		b.Set(step.list, step.bad)
		if want := [2]string{step.status, step.reason}; *said != want {
			t.Errorf("%s %v: says %q, want %q", step.list, step.bad, *said, want)
		}
		if got := strings.Count(log.String(), "\n"); got != step.logged || strings.ContainsAny(log.String(), "\x1b\u202e") {
			t.Errorf("%s %v: logged %q, want %d lines", step.list, step.bad, log, step.logged)
		}
	}
}

// TestBoardIsBounded: logs and reasons stay short, however many records are bad and however large they are.
func TestBoardIsBounded(t *testing.T) {
	b, log, said, now := boardUnderTest()
	const most = registry.MaxShownKey + registry.MaxShownReason + 200 // bytes of a line
	many := func(what string) []registry.BadRecord {
		var bad []registry.BadRecord
		for i := range 10_000 {
			key := fmt.Sprintf("leno/leases/n/%s-%d", what, i)
			if i < 3 {
				key += strings.Repeat("k", 100_000)
			}
			bad = append(bad, registry.BadRecord{Key: key, Reason: strings.Repeat("r", 5000)})
		}
		return bad
	}
	for _, step := range []struct {
		what   string
		passes time.Duration
		lines  int
	}{
		{"a", 0, maxLogged + 1},
		{"a", 0, 0},
		{"b", time.Second, 1}, // the number alone: names are not logged within the same minute
		{"c", time.Second, 1},
		{"d", time.Second, 1},
		{"e", time.Second, 1},
		{"f", time.Second, 0}, // the number is not logged for ever, either
		{"f", time.Minute, 0},
		{"g", 0, maxLogged + 1},
	} {
		*now = now.Add(step.passes)
		log.Reset()
		b.Set("lease list", many(step.what))
		if got := strings.Count(log.String(), "\n"); got != step.lines || log.Len() > step.lines*most {
			t.Errorf("%+v: logged %d lines, %d bytes", step, got, log.Len())
		}
		if step.lines > 0 && !strings.Contains(log.String(), "total=10000") {
			t.Errorf("%+v: does not say how many", step)
		}
		if len(said[1]) > most || !strings.HasPrefix(said[1], "10000 records skipped") {
			t.Errorf("says %d bytes: %.200s", len(said[1]), said[1])
		}
	}
}
