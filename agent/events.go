package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// Bounds of what is remembered of what happened.
const (
	keptEvents      = 512
	maxEventMessage = 400 // bytes: some of it is other hosts' text
	maxEventField   = 200 // bytes
	floodSpan       = time.Minute
	floodAfter      = 12 // events of one kind in one network within floodSpan, after which they are counted
)

// events is what happened on this host lately, for people. Safe for concurrent
// use.
type events struct {
	now func() time.Time

	mu      sync.Mutex
	ring    []api.Event // oldest first, keptEvents at most
	last    uint64      // index of the newest, or of none
	changed chan struct{}
	floods  map[string]*flood // by kind and network
	failing map[string]bool   // checks that were told to fail
}

// flood counts events of one kind, so that many of them leave the others their
// room.
type flood struct {
	since time.Time
	count int
	sum   uint64 // index of the event that stands for those that were not kept, 0 for none
}

// newEvents begins with an index that is past all of an earlier process: nobody
// who goes on reading after a restart misses what happened first.
func newEvents(now func() time.Time) *events {
	return &events{now: now, last: uint64(now().UnixMilli()), changed: make(chan struct{}),
		floods: map[string]*flood{}, failing: map[string]bool{}}
}

// add remembers an event. Index and time are given here, and what others wrote is
// bounded.
func (e *events) add(v api.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.append(v)
}

// append is add; mu is held.
func (e *events) append(v api.Event) {
	e.last++
	v.Index, v.Time, v.Message = e.last, e.now(), plain(v.Message, maxEventMessage)
	fields := maps.Clone(v.Fields)
	for name, value := range fields {
		fields[name] = plain(value, maxEventField)
	}
	v.Fields = fields
	v = e.counted(v)
	e.ring = append(e.ring, v)
	if over := len(e.ring) - keptEvents; over > 0 {
		e.ring = slices.Delete(e.ring, 0, over)
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// counted is the event itself, or in a flood the one that stands for it and for
// those before it, which leaves the ring. mu is held.
func (e *events) counted(v api.Event) api.Event {
	key := v.Kind + "\x00" + v.Network
	f := e.floods[key]
	if f == nil || v.Time.Sub(f.since) >= floodSpan {
		f = &flood{since: v.Time}
		e.floods[key] = f
	}
	f.count++
	more := f.count - floodAfter
	if more <= 1 {
		f.sum = v.Index // the first of them stands for itself
		return v
	}
	e.ring = slices.DeleteFunc(e.ring, func(old api.Event) bool { return old.Index == f.sum })
	f.sum = v.Index
	v.Message = plain(fmt.Sprintf("%d more within %s, the last: %s", more, v.Time.Sub(f.since).Round(time.Second), v.Message), maxEventMessage)
	return v
}

// after are the events of a network later than an index, oldest first, "" for all
// networks and the agent itself. last is the index to go on from; changed closes
// at the next event of any network.
func (e *events) after(index uint64, network string) (out []api.Event, last uint64, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if index > e.last {
		index = 0 // the reader has it from a clock that was put back
	}
	out = []api.Event{}
	for _, v := range e.ring {
		if v.Index > index && (network == "" || v.Network == network) {
			out = append(out, v)
		}
	}
	return out, e.last, e.changed
}

// checked remembers that a check fails, and that it passes again. That one passes
// from the start is no news, nor what it says while it waits for the start.
func (e *events) checked(network string, c api.Check) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := network + "\x00" + c.Name
	v := api.Event{Network: network, Kind: api.EventCheck, Severity: c.Status, Message: c.Name + ": " + c.Reason,
		Fields: map[string]string{"check": c.Name, "status": c.Status}}
	switch {
	case c.Status != api.Passing && c.Reason == starting:
		return
	case c.Status != api.Passing:
		e.failing[key] = true
	case !e.failing[key]:
		return
	default:
		delete(e.failing, key)
		v.Severity = api.Info
		v.Message = c.Name + " is well again: " + c.Reason
	}
	e.append(v)
}

// starting is the reason of checks that nothing was found out for yet.
const starting = "starting"

// plain is text that prints on one line, cut.
func plain(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		return unicode.ReplacementChar
	}, cut(s, most))
	return s
}

// event remembers what happened in the runner's network.
func (r *runner) event(kind, severity, message string, fields map[string]string) {
	r.env.events.add(api.Event{Network: r.local.Name, Kind: kind, Severity: severity, Message: message, Fields: fields})
}

// taken remembers that this host has a lease it did not have before. A record that
// was only written anew is no news, and another subnet is told by moved.
func (r *runner) taken(before, now registry.Lease) {
	message := ""
	switch {
	case !before.Subnet().IsValid():
		message = fmt.Sprintf("this host holds %s", now.Subnet())
	case before.Slot == now.Slot && (before.Session != now.Session || before.CreateIndex != now.CreateIndex):
		message = fmt.Sprintf("this host holds %s again", now.Subnet())
	default:
		return
	}
	r.event(api.EventLease, api.Info, message, map[string]string{"change": "taken", "subnet": now.Subnet().String()})
}

// reloaded remembers how a reload went, and returns err.
func (a *Agent) reloaded(err error) error {
	v := api.Event{Kind: api.EventReload, Severity: api.Info, Message: "configuration reloaded"}
	if err != nil {
		v.Severity, v.Message = api.Warning, "reload refused: "+err.Error()
	}
	a.env.events.add(v)
	a.env.telemetry.Count(telemetry.Reloads, 1, telemetry.Result(err))
	return err
}
