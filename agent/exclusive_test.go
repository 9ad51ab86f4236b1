package agent

import "testing"

// TestExclusive: one run about a subject excludes others about it, and none about other subjects.
func TestExclusive(t *testing.T) {
	var runs exclusive
	began, ok := runs.start("n")
	if !ok {
		t.Fatal("the first run did not begin")
	}
	if since, ok := runs.start("n"); ok || !since.Equal(began) {
		t.Errorf("a second run began: %t; the first one is said to have begun at %s, want %s", ok, since, began)
	}
	if _, ok := runs.start("m"); !ok {
		t.Error("a run about another subject did not begin")
	}
	runs.end("n")
	if _, ok := runs.start("n"); !ok {
		t.Error("no run began after the end of the first one")
	}
}
