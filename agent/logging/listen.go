package logging

import (
	"errors"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"
)

const (
	// maxListeners bounds the agent's costs for listeners.
	maxListeners = 16
	// backlog is how many lines wait for a slow listener.
	backlog = 512
)

// ErrTooManyListeners reports that the maximum number of listeners is reached.
var ErrTooManyListeners = errors.New("16 listeners follow the log already")

// Listener follows the log from now on, at a level of its own. One goroutine calls its methods.
type Listener struct {
	log  *Log
	sink hclog.SinkAdapter // writes to lines
	gap  hclog.SinkAdapter // writes messages about lost lines to gapText
	wake chan struct{}     // has room for one: there are lines
	over chan struct{}     // closed when no more lines will come

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

// Listen starts to follow the log. Close ends it.
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

// Write queues one line of the log; it never blocks.
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

// Over is closed when the log has no more lines for listeners; Take still returns the remaining ones.
func (n *Listener) Over() <-chan struct{} { return n.over }

// Take returns all waiting lines, followed by one that tells how many were lost after them, if any.
func (n *Listener) Take() [][]byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.lines
	n.lines = nil
	if n.lost > 0 {
		n.gapText = nil
		n.gap.Accept("leno.monitor", hclog.Warn, "lines were lost here, the listener is too slow", "lost", n.lost)
		out, n.lost = append(out, n.gapText), 0
	}
	return out
}

// Close ends the listener; it may be called repeatedly.
func (n *Listener) Close() {
	n.log.mu.Lock()
	defer n.log.mu.Unlock()
	delete(n.log.listeners, n)
}

// Dismiss ends all listeners, and any that start later.
func (l *Log) Dismiss() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dismissed = true
	for n := range l.listeners {
		close(n.over)
	}
	clear(l.listeners)
}
