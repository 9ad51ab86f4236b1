package hello

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
)

func summaryOf(version string) api.HostSummary {
	return api.HostSummary{Version: version, Health: api.Warning, Reason: "packets are lost", Backend: "vxlan",
		PublicIP: "192.0.2.1", MTU: 1450, Peers: 3, Reached: 2, Lost: []string{"host-b"}}
}

func TestMessage(t *testing.T) {
	m := message{asks: true, current: true, pause: 14 * time.Second, seq: 7, nonce: 1 << 63, echo: 5, last: 3, received: 0b101,
		summary: marshalSummary(summaryOf("1.0"))}
	b := m.marshal()
	got, err := parse(b)
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Fatalf("%+v, %v, want %+v", got, err, m)
	}
	if s, err := parseSummary(got.summary); err != nil || !reflect.DeepEqual(s, summaryOf("1.0")) {
		t.Errorf("the summary is %+v, %v", s, err)
	}
	for name, row := range map[string]func([]byte) []byte{
		"nothing":                  func([]byte) []byte { return nil },
		"half a header":            func(b []byte) []byte { return b[:headerLen-1] },
		"another version":          func(b []byte) []byte { b[0] = version + 1; return b },
		"too long":                 func(b []byte) []byte { return append(b, make([]byte, maxMessage)...) },
		"no sequence number":       func(b []byte) []byte { clear(b[4:8]); return b },
		"no nonce":                 func(b []byte) []byte { clear(b[8:16]); return b },
		"received from no process": func(b []byte) []byte { clear(b[16:24]); return b },
	} {
		if got, err := parse(row(slices.Clone(b))); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestSummaryLimits: whatever a summary says, it stays short, and members that this version does not know are ignored.
func TestSummaryLimits(t *testing.T) {
	long := summaryOf(strings.Repeat("v", 1000))
	long.Reason = strings.Repeat("\"", 5000)
	for range 1000 {
		name := strings.Repeat("host", 100)
		long.Lost, long.Short, long.Lossy = append(long.Lost, name), append(long.Short, name), append(long.Lossy, name)
	}
	b := marshalSummary(long)
	if s, err := parseSummary(b); err != nil || len(b) > maxSummary || len(s.Lost) == 0 || len(s.Version) != maxWord {
		t.Errorf("%d bytes, %+v, %v", len(b), s, err)
	}
	many := api.HostSummary{Peers: 99, Reached: 99, Impaired: 99}
	for i := range 8 {
		many.Short, many.Lossy = append(many.Short, fmt.Sprint("s", i)), append(many.Lossy, fmt.Sprint("l", i))
	}
	if s, err := parseSummary(marshalSummary(many)); err != nil || s.Impaired != 99 || len(s.Short) != 8 || len(s.Lossy) != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	s, err := parseSummary([]byte(`{"version":"9\u001b[2J\n","at":"2030-01-01T00:00:00Z","mtu":-1,"new":{"a":[1]},"health":"splendid","peers":2,"reached":9}`))
	if want := (api.HostSummary{Version: "9[2J", Peers: 2, Reached: 2}); err != nil || !reflect.DeepEqual(s, want) {
		t.Errorf("%+v, %v, want %+v", s, err, want)
	}
}

func FuzzMessage(f *testing.F) {
	f.Add(message{seq: 1, nonce: 1}.marshal())
	f.Add(message{asks: true, seq: 9, nonce: 1, echo: 2, last: 3, received: 7, summary: marshalSummary(summaryOf("1"))}.marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil {
			return
		}
		again, err := parse(m.marshal())
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%+v became %+v, %v", m, again, err)
		}
		s, err := parseSummary(m.summary)
		if err != nil {
			return
		}
		if out := marshalSummary(s); len(out) > maxSummary || bytes.ContainsRune(out, 0x1b) {
			t.Fatalf("%q", out)
		}
		p := peer{incoming: incoming{nonce: m.nonce, heard: time.Now()}}
		p.receive(m, 2, time.Now())
		p.hear(m, time.Now())
		for _, l := range []loss{p.lossTo(time.Now()), p.lossFrom(time.Now())} {
			if l.lost < 0 || l.lost > l.of {
				t.Fatalf("%+v", l)
			}
		}
	})
}
