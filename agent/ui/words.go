package ui

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/fleet"
	"github.com/lenonet/leno/api"
)

// number formats an integer with separators between thousands.
func number(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// bytesOf formats an amount of bytes in about three digits.
func bytesOf(n uint64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n), 0
	for value >= 999.5 && unit < 6 {
		value, unit = value/1000, unit+1
	}
	digits := 0
	if value < 9.95 {
		digits = 1
	}
	return fmt.Sprintf("%.*f %cB", digits, value, " kMGTPE"[unit])
}

// clock formats a time of day, with its date when that is not today's.
func clock(now, t time.Time) string {
	now, t = now.UTC(), t.UTC()
	if t.IsZero() {
		return "-"
	}
	if now.Format(time.DateOnly) == t.Format(time.DateOnly) {
		return t.Format("15:04:05")
	}
	return t.Format("2006-01-02 15:04:05")
}

// age formats a duration in its largest unit.
func age(d time.Duration) string {
	for _, u := range []struct {
		span time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}} {
		if d >= u.span {
			return fmt.Sprintf("%d %s", d/u.span, u.name)
		}
	}
	return "under 1 min"
}

// drops formats the numbers of dropped packets, by reason.
func drops(by map[string]uint64) string {
	var out []string
	for _, reason := range slices.Sorted(maps.Keys(by)) {
		if by[reason] > 0 {
			out = append(out, fmt.Sprintf("%s %s", number(by[reason]), strings.ReplaceAll(reason, "_", " ")))
		}
	}
	return strings.Join(out, ", ")
}

// statusWord returns a status in words.
func statusWord(status string) string {
	if status == api.Passing {
		return "healthy"
	}
	return status
}

// hostIcon returns the severity of a host's state, "" for a state that says nothing.
func hostIcon(state string) string {
	switch state {
	case api.HostUnknown:
		return ""
	case api.Passing:
		return api.Passing
	case api.HostFailed, api.PathLost, api.Critical:
		return api.Critical
	}
	return api.Warning
}

// hostWord returns a host's state in words.
func hostWord(state string) string {
	switch state {
	case api.HostFailed:
		return "failed (consul)"
	case api.HostUnknown:
		return "-"
	}
	return state
}

// otherPaths says how many hosts have no row in a table of paths, and why; "" if all have one.
func otherPaths(t fleet.PathTable) string {
	if t.Faulty+t.Fine+t.Silent == 0 {
		return ""
	}
	out := fmt.Sprintf("Hosts with a fault on their paths: %d", t.Faulty)
	if rows := max(len(t.Rows)-1, 0); t.Faulty > rows {
		out += fmt.Sprintf(", of which %d are shown", rows)
	}
	out += fmt.Sprintf(". Other hosts: %d healthy", t.Fine)
	if t.Silent > 0 {
		out += fmt.Sprintf(", %d unknown, because they sent no summary", t.Silent)
	}
	if t.Left > 0 {
		out += fmt.Sprintf(", %d not compared", t.Left)
	}
	return out + "."
}
