package registry

import (
	"strings"
	"testing"
)

func TestShorten(t *testing.T) {
	for _, tt := range []struct {
		text string
		most int
		want string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "…"}, {"abcdefg", 6, "abc…"}, {"aébcde", 5, "a…"}, {"aébcde", 6, "aé…"}, {"a\xff\xffbcde", 6, "a…"},
	} {
		if got := Shorten(tt.text, tt.most); got != tt.want {
			t.Errorf("%q in %d bytes: %q, want %q", tt.text, tt.most, got, tt.want)
		}
	}
	b := BadRecord{Key: strings.Repeat("k", 600), Reason: strings.Repeat("r", 600)}.Shortened()
	if len(b.Key) != MaxShownKey || len(b.Reason) != MaxShownReason {
		t.Errorf("key of %d bytes, reason of %d", len(b.Key), len(b.Reason))
	}
}

func TestNetworkSet(t *testing.T) {
	s := NetworkSet{
		Networks: []Network{{Name: "a"}, {Name: "b", ModifyIndex: 2}},
		Deleted:  []Deletion{{Network: "c", ModifyIndex: 3}},
		Bad:      []BadRecord{{Key: "leno/networks/d", Reason: "no JSON", Network: "d"}, {Key: "leno/leases/e", Reason: "not a network"}},
	}
	if n, ok := s.Find("b"); !ok || n.ModifyIndex != 2 {
		t.Errorf("found %+v, %t", n, ok)
	}
	if d, ok := s.Deletion("c"); !ok || d.ModifyIndex != 3 {
		t.Errorf("deleted %+v, %t", d, ok)
	}
	if reason, ok := s.Unusable("d"); !ok || reason != "no JSON" {
		t.Errorf("unusable: %q, %t", reason, ok)
	}
	for _, name := range []string{"", "c", "d", "e", "networks/d"} {
		if n, ok := s.Find(name); ok {
			t.Errorf("%q was found: %+v", name, n)
		}
	}
	for _, name := range []string{"", "a", "d"} {
		if d, ok := s.Deletion(name); ok {
			t.Errorf("%q was deleted: %+v", name, d)
		}
	}
	for _, name := range []string{"", "a", "c", "e"} {
		if reason, ok := s.Unusable(name); ok {
			t.Errorf("%q is unusable: %s", name, reason)
		}
	}
}
