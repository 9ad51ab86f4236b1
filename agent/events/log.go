// Package events keeps a log of recent events on this host, for people.
package events

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/lenonet/leno/api"
)

// Limits of the log.
const (
	maxEvents  = 512
	maxMessage = 400 // bytes; parts of it may come from other hosts
	maxField   = 200 // bytes
	floodSpan  = time.Minute
	floodAfter = 12 // after so many events of one flood within floodSpan, the others are counted
)

// A Log holds the latest events of this host. It is safe for concurrent use.
type Log struct {
	now func() time.Time

	mu      sync.Mutex
	ring    []api.Event       // oldest first, at most maxEvents
	start   uint64            // index before the first event
	last    uint64            // index of the newest event
	newest  map[string]uint64 // index of the newest event of each network
	changed chan struct{}
	floods  map[string]*flood // by kind, network and severity
	failing map[string]bool   // checks that have failed and not recovered, by network and name
}

// A flood counts events of one kind, network and severity, so that many of them do not push out all others.
type flood struct {
	since   time.Time
	count   int
	summary uint64 // index of the event that stands for those that were dropped, 0 for none
}

// New returns an empty log. Its indexes begin above all indexes of an earlier process, so that a reader that continues
// after a restart misses nothing.
func New(now func() time.Time) *Log {
	start := uint64(now().UnixMilli())
	return &Log{
		now:     now,
		start:   start,
		last:    start,
		newest:  map[string]uint64{},
		changed: make(chan struct{}),
		floods:  map[string]*flood{},
		failing: map[string]bool{},
	}
}

// Add adds an event. It sets the event's index and time and shortens its texts.
func (l *Log) Add(v api.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(v)
}

// add is Add; mu is held.
func (l *Log) add(v api.Event) {
	l.last++
	l.newest[v.Network] = l.last
	v.Index, v.Time, v.Message = l.last, l.now(), printable(v.Message, maxMessage)
	fields := maps.Clone(v.Fields)
	for name, value := range fields {
		fields[name] = printable(value, maxField)
	}
	v.Fields = fields
	l.ring = append(l.ring, l.limitFlood(v))
	if over := len(l.ring) - maxEvents; over > 0 {
		l.ring = slices.Delete(l.ring, 0, over)
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// limitFlood returns v, or in a flood a summary of v and the events before it. The previous summary leaves the ring. mu
// is held.
func (l *Log) limitFlood(v api.Event) api.Event {
	key := v.Kind + "\x00" + v.Network + "\x00" + v.Severity
	f := l.floods[key]
	if f == nil || v.Time.Sub(f.since) >= floodSpan {
		f = &flood{since: v.Time}
		l.floods[key] = f
	}
	f.count++
	more := f.count - floodAfter
	if more <= 1 {
		f.summary = v.Index // the first one summarizes only itself
		return v
	}
	l.ring = slices.DeleteFunc(l.ring, func(old api.Event) bool { return old.Index == f.summary })
	f.summary = v.Index
	v.Message = printable(fmt.Sprintf("%d more within %s, the last: %s",
		more, v.Time.Sub(f.since).Round(time.Second), v.Message), maxMessage)
	return v
}

// After returns the events with an index above index, oldest first. If network is not "", it returns only the events of
// that network. last is the index to continue from, that of the newest of these events. changed is closed when the next
// event of any network is added.
func (l *Log) After(index uint64, network string) (out []api.Event, last uint64, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if index > l.last {
		index = 0 // it is from before the clock was set back
	}
	out = []api.Event{}
	for _, v := range l.ring {
		if v.Index > index && (network == "" || v.Network == network) {
			out = append(out, v)
		}
	}
	last = l.last
	if network != "" {
		last = cmp.Or(l.newest[network], l.start)
	}
	return out, last, l.changed
}

// AddCheck adds an event for a check that fails, and for one that has recovered. A check that passes from the start
// adds none. network is "" for a check of the agent.
func (l *Log) AddCheck(network string, c api.Check) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := network + "\x00" + c.Name
	v := api.Event{
		Network:  network,
		Kind:     api.EventCheck,
		Severity: c.Status,
		Message:  c.Name + ": " + c.Reason,
		Fields:   map[string]string{"check": c.Name, "status": c.Status},
	}
	switch {
	case c.Status != api.Passing:
		l.failing[key] = true
	case !l.failing[key]:
		return
	default:
		delete(l.failing, key)
		v.Severity = api.Info
		v.Message = c.Name + " recovered: " + c.Reason
	}
	l.add(v)
}

// printable returns at most about most bytes of s in one line. Characters that do not print are replaced.
func printable(s string, most int) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}
