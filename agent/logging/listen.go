package logging

import (
	"errors"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"
)

const (
	// maxListeners bounds what listening can cost the agent.
	maxListeners = 16
	// backlog is how many lines wait for a listener who is slow.
	backlog = 512
)

// ErrTooManyListeners says that there are as many as there may be.
var ErrTooManyListeners = errors.New("16 listeners follow the log already")

// Listener follows the log from now on, at a level of its own. Its methods are
// called by one goroutine.
type Listener struct {
	log  *Log
	sink hclog.SinkAdapter // lines into it
	gap  hclog.SinkAdapter // into gapText, what is told of lost lines
	wake chan struct{}     // room for one: there are lines
	over chan struct{}     // closed when nothing more comes

	mu      sync.Mutex
	lines   [][]byte
	lost    int // lines after the last one in lines
	gapText lineBuffer
}

type lineBuffer []byte

func (b *lineBuffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

// Listen begins to follow the log. Close ends it.
func (l *Log) Listen(level hclog.Level, json bool) (*Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.listeners) >= maxListeners {
		return nil, ErrTooManyListeners
	}
	n := &Listener{log: l, wake: make(chan struct{}, 1), over: make(chan struct{})}
	if l.dismissed {
		close(n.over)
		return n, nil
	}
	n.sink = newSink(level, json, redactor{&l.secrets, n})
	n.gap = newSink(hclog.Warn, json, &n.gapText)
	l.listeners[n] = true
	return n, nil
}

// Write takes one line of the log; it never waits.
func (n *Listener) Write(line []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lost > 0 || len(n.lines) >= backlog {
		n.lost++
		return len(line), nil
	}
	n.lines = append(n.lines, slices.Clone(line))
	select {
	case n.wake <- struct{}{}:
	default:
	}
	return len(line), nil
}

// Wake receives when there may be lines to take.
func (n *Listener) Wake() <-chan struct{} { return n.wake }

// Over is closed when the log has no more for listeners; Take has the rest.
func (n *Listener) Over() <-chan struct{} { return n.over }

// Take is all lines that wait, with one at the end that says how many were lost
// after them.
func (n *Listener) Take() [][]byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.lines
	n.lines = nil
	if n.lost > 0 {
		n.gapText = nil
		n.gap.Accept("leno.monitor", hclog.Warn, "lines were lost here, whoever listens is too slow", "lost", n.lost)
		out, n.lost = append(out, n.gapText), 0
	}
	return out
}

// Close ends it; it may be repeated.
func (n *Listener) Close() {
	n.log.mu.Lock()
	defer n.log.mu.Unlock()
	delete(n.log.listeners, n)
}

// Dismiss ends all listeners, and those to come.
func (l *Log) Dismiss() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dismissed = true
	for n := range l.listeners {
		close(n.over)
	}
	clear(l.listeners)
}
