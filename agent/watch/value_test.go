package watch

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
)

func TestValue(t *testing.T) {
	v := New[string]()
	is := func(want string, wantOK bool) (changed <-chan struct{}) {
		t.Helper()
		got, ok, changed := v.Get()
		if got != want || ok != wantOK {
			t.Errorf("value %q, %t, want %q, %t", got, ok, want, wantOK)
		}
		return changed
	}
	closed := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}

	first := is("", false)
	if closed(first) {
		t.Error("a change is reported before the first Set")
	}
	v.Set("a")
	second := is("a", true)
	if !closed(first) || closed(second) {
		t.Error("Set closes the channel of earlier readers only")
	}
	v.Set("a")
	third := is("a", true)
	if !closed(second) {
		t.Error("Set with an equal value wakes no reader")
	}
	v.Clear()
	if is("", false); !closed(third) {
		t.Error("Clear wakes no reader")
	}
}

// TestValueReaders: many readers follow a value to the end and miss no last value, whatever they skip in between.
func TestValueReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const last = 1000
		v := New[int]()
		var readers sync.WaitGroup
		for range 20 {
			readers.Go(func() {
				for before := -1; before < last; {
					value, ok, changed := v.Get()
					if ok && value < before {
						t.Errorf("value %d after %d", value, before)
					}
					if ok {
						before = value
					}
					if before < last {
						<-changed
					}
				}
			})
		}
		for i := range last + 1 {
			v.Set(i)
		}
		readers.Wait()
	})
}

// TestUpdate: changes that depend on the value do not lose each other, and wake the readers.
func TestUpdate(t *testing.T) {
	v := New[int]()
	_, _, changed := v.Get()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { v.Update(func(n *int) { *n++ }) })
	}
	wg.Wait()
	if n, ok, _ := v.Get(); n != 50 || !ok {
		t.Errorf("%d, %t", n, ok)
	}
	select {
	case <-changed:
	default:
		t.Error("no reader was woken")
	}
}

// TestUntil: the context ends with its parent, with the next change, and at once if there was one in between.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := New[int]()
		ended := func(ctx context.Context) bool {
			synctest.Wait()
			return ctx.Err() != nil
		}
		_, _, changed := v.Get()
		first, cancel := v.Until(t.Context(), changed)
		cancelled, end := v.Until(t.Context(), changed)
		if ended(first) || ended(cancelled) {
			t.Error("ended before a change")
		}
		if end(); !ended(cancelled) || ended(first) {
			t.Error("cancel ends its own context")
		}
		if v.Set(1); !ended(first) {
			t.Error("not ended by a change")
		}
		cancel()
		if late, cancel := v.Until(t.Context(), changed); !ended(late) {
			t.Error("not ended by an earlier change")
		} else {
			cancel()
		}
	})
}
