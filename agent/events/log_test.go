package events

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
)

// A clock stands still until a test moves it.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func messages(list []api.Event) (out []string) {
	for _, v := range list {
		out = append(out, v.Message)
	}
	return out
}

func TestLogIsBounded(t *testing.T) {
	now := &clock{time.UnixMilli(1_000_000)}
	e := New(now.now)
	if list, last, _ := e.After(0, ""); len(list) != 0 || list == nil || last != 1_000_000 {
		t.Errorf("at the start %v, last %d", list, last)
	}
	_, start, changed := e.After(0, "")
	e.Add(api.Event{Kind: api.EventAgent, Message: "started"})
	<-changed
	e.Add(api.Event{Kind: api.EventReload, Network: "n", Message: strings.Repeat("é", 1000) + "\x1b[31m", Fields: map[string]string{"host": "a\nb\u202e" + strings.Repeat("x", 1000)}})
	list, last, _ := e.After(0, "n")
	if len(list) != 1 || last != start+2 || list[0].Index != last || !list[0].Time.Equal(now.Time) {
		t.Fatalf("%+v, last %d", list, last)
	}
	if m, f := list[0].Message, list[0].Fields["host"]; len(m) > maxMessage+len("…") || !utf8.ValidString(m) ||
		len(f) > maxField+len("…")+6 || strings.ContainsAny(f, "\n\u202e") {
		t.Errorf("not bounded: %q, %q", m, f)
	}
	if list, other, _ := e.After(0, "m"); len(list) != 0 || other != start {
		t.Errorf("of a network without events: %v, last %d", messages(list), other)
	}
	if list, _, _ := e.After(start+1, ""); len(list) != 1 {
		t.Errorf("after the first: %v", messages(list))
	}
	if list, _, _ := e.After(last+100, ""); len(list) != 2 {
		t.Errorf("for a reader from the future: %v", messages(list))
	}

	// A flood of one kind leaves everything else where it is.
	for i := range 5000 {
		now.Time = now.Add(time.Millisecond)
		e.Add(api.Event{Kind: api.EventPeer, Network: "n", Message: fmt.Sprintf("host %d", i)})
	}
	list, _, _ = e.After(0, "")
	if len(list) != 2+floodAfter+1 || list[0].Message != "started" || list[len(list)-1].Message != "4988 more within 5s, the last: host 4999" {
		t.Errorf("%d events, the last %q", len(list), list[len(list)-1].Message)
	}
	e.Add(api.Event{Kind: api.EventPeer, Network: "m", Message: "another network"})
	// What is worse than the flood stays.
	e.Add(api.Event{Kind: api.EventPeer, Network: "n", Severity: api.Warning, Message: "a host that is refused"})
	e.Add(api.Event{Kind: api.EventPeer, Network: "n", Message: "host 5000"})
	list, _, _ = e.After(0, "")
	if got := list[len(list)-2:]; got[0].Message != "a host that is refused" || !strings.HasPrefix(got[1].Message, "4989 more") {
		t.Errorf("after a warning in the flood: %q", messages(got))
	}
	now.Time = now.Add(floodSpan)
	for i := range 3 * maxEvents { // one kind after the other
		e.Add(api.Event{Kind: fmt.Sprint(i), Message: "x"})
	}
	if list, _, _ := e.After(0, ""); len(list) != maxEvents || !slices.IsSortedFunc(list, func(a, b api.Event) int { return int(a.Index) - int(b.Index) }) {
		t.Errorf("%d events are kept", len(list))
	}
}

func TestAddCheck(t *testing.T) {
	e := New(time.Now)
	h := health.New(time.Now, e.AddCheck)
	h.Set("n", health.Network, api.Critical, health.Starting)
	h.Set("n", health.Network, api.Passing, "defined")
	h.Set("m", health.Network, api.Critical, health.Starting)
	h.Set("m", health.Network, api.Critical, "deleted")
	h.Set("m", health.Network, api.Critical, "deleted still")
	h.Set("m", health.Network, api.Passing, "defined")
	h.Set("", health.Node, api.Critical, health.Starting)
	h.Resolve("", health.Node, "known")
	h.Set("", health.Node, api.Critical, health.Starting)
	h.Set("", health.Node, api.Critical, "not known")
	h.Resolve("", health.Node, "known")
	h.Set("n", health.Lease, api.Passing, "held")
	h.Set("n", health.Lease, api.Warning, "lost")
	h.Set("n", health.Lease, api.Warning, "lost still")
	h.Set("", health.Consul, api.Warning, "away")
	h.Set("n", health.Lease, api.Critical, "gone")
	h.Set("n", health.Lease, api.Passing, "held again")
	h.Set("", health.Consul, api.Passing, "answers")
	var got []string
	list, _, _ := e.After(0, "")
	for _, v := range list {
		got = append(got, fmt.Sprintf("%s %s %s", v.Network, v.Severity, v.Message))
	}
	want := []string{"m critical network: deleted", "m info network recovered: defined", " critical node: not known", " info node recovered: known",
		"n warning lease: lost", " warning consul: away", "n critical lease: gone", "n info lease recovered: held again", " info consul recovered: answers"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
