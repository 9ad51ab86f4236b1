// Package waiting is for tests that wait for other programs, goroutines and the kernel.
package waiting

import (
	"errors"
	"flag"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Parallel makes at least this many tests run beside each other, even with fewer processors, unless the flag -parallel
// says how many. TestMain calls it first. Tests that wait use a processor for a small part of their time.
func Parallel(atLeast int) {
	flag.Parse() // testing.M.Run does not parse them again
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set(strconv.Itoa(max(atLeast, runtime.GOMAXPROCS(0)))) // a number is always accepted
	}
}

// patience is how long a test waits for something that is to happen. Only a failure takes that long.
const patience = 3 * time.Minute

// Eventually polls until check returns nil.
func Eventually(t testing.TB, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// Until polls until a condition holds.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	Eventually(t, func() error {
		if !holds() {
			return errors.New("this never happened: " + what)
		}
		return nil
	})
}

// Lines keeps the lines that are written to it, such as those of a log. It is safe for concurrent use.
type Lines struct {
	mu   sync.Mutex
	text []byte
}

func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	return len(p), nil
}

// String returns all that was written.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

// With returns the lines that contain all words.
func (l *Lines) With(words ...string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(string(l.text)) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}
