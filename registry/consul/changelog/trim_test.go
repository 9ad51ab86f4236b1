package changelog

import (
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// TestCursorTrims: old entries are deleted once they are half of all, and the watermark rises with them.
func TestCursorTrims(t *testing.T) {
	start := time.Now()
	c := newCursor()
	c.Adopt(NewReading(dirPrefix, listOf(markAt(2, 6, 5), entryAt(9), entryAt(7)), 10), start)
	young := listOf(markAt(2, 6, 5), entryAt(7), entryAt(9), entryAt(11), entryAt(12))
	if _, reason := c.Advance(NewReading(dirPrefix, young, 12), start.Add(time.Minute)); reason != "" {
		t.Fatal(reason)
	}
	want := []string{entryAt(7).Key, entryAt(9).Key}
	if got := c.Trimmable(start.Add(time.Minute), time.Minute); !slices.Equal(got, want) {
		t.Errorf("trimmable: %q, want %q", got, want)
	}
	if got := c.Trimmable(start.Add(time.Minute-1), time.Minute); got != nil {
		t.Errorf("trimmable too soon: %q", got)
	}
	ops, mark := c.TrimOps(want[1:])
	last := ops[len(ops)-1]
	if mark != 9 || len(ops) != 2 || ops[0].Verb != api.KVDelete || ops[0].Key != want[1] {
		t.Errorf("watermark %d, %+v", mark, ops[0])
	}
	if last.Verb != api.KVCAS || last.Key != dirPrefix+WatermarkName || string(last.Value) != "9" || last.Index != 6 {
		t.Errorf("%+v", last)
	}
	c.Trimmed(want[1:], mark, 14)
	if _, again := c.TrimOps(want[:1]); again != 9 || c.Len() != 3 {
		t.Errorf("watermark %d, %d entries", again, c.Len())
	}
	// One old entry of three is too few.
	if got := c.Trimmable(start.Add(time.Minute), time.Minute); got != nil {
		t.Errorf("trimmable: %q", got)
	}
	after := listOf(markAt(2, 14, 9), entryAt(7), entryAt(11), entryAt(12))
	if changes, reason := c.Advance(NewReading(dirPrefix, after, 14), start); reason != "" || len(changes) != 0 {
		t.Errorf("%v, %q", changes, reason)
	}
}

// TestCanDescribe: which records an entry can be written about.
func TestCanDescribe(t *testing.T) {
	for _, tt := range []struct {
		name string
		pair api.KVPair
		want bool
	}{
		{"10.5.201.0-24", api.KVPair{ModifyIndex: 1, Value: []byte("{}")}, true},
		{"10.5.201.0-24", api.KVPair{}, true},
		{"10.5.201.0-24", api.KVPair{ModifyIndex: 1}, false},
		{"10.5.201.0-24", api.KVPair{ModifyIndex: 1, Value: make([]byte, 1<<20)}, false},
		{"a/10.5.201.0-24", api.KVPair{ModifyIndex: 1, Value: []byte("{}")}, false},
		{"_", api.KVPair{ModifyIndex: 1, Value: []byte("{}")}, false},
	} {
		if got := CanDescribe(tt.name, tt.pair.Value, tt.pair.ModifyIndex != 0); got != tt.want {
			t.Errorf("%s with %d bytes at %d: %t", tt.name, len(tt.pair.Value), tt.pair.ModifyIndex, got)
		}
	}
}
