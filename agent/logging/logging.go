// Package logging is where the agent's log goes: standard error, a file, and
// whoever listens. All of that may change while the agent runs, and known secrets
// are taken out of every line on its way. It decides nothing about what is
// logged.
package logging

import (
	"io"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
)

// Log is the agent's log. Safe for concurrent use. Nothing that goes wrong with
// its file or its listeners ever reaches whoever logs.
type Log struct {
	logger  hclog.InterceptLogger
	secrets secrets

	mu        sync.Mutex // held around every line
	config    config.Log
	sink      hclog.SinkAdapter // standard error and file
	output    output
	listeners map[*Listener]bool
	dismissed bool // there are no more listeners
}

// New opens the log. An error is that of the file, and names its option.
func New(stderr io.Writer, c config.Log) (*Log, error) {
	l := &Log{output: output{stderr: stderr}, listeners: map[*Listener]bool{}}
	take, _, err := l.Prepare(c)
	if err != nil {
		return nil, err
	}
	take()
	// Each destination has a level and a format of its own: the logger has none.
	l.logger = hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "leno", Level: hclog.Off, Output: io.Discard})
	l.logger.RegisterSink(l)
	return l, nil
}

// Logger writes into the log. Its level is not the log's, so asking it whether a
// level is enabled tells nothing, and setting it does nothing.
func (l *Log) Logger() hclog.Logger { return l.logger }

// Hide has a secret replaced wherever it stands in a line from now on.
func (l *Log) Hide(secret string) { l.secrets.add(secret) }

// newSink formats lines for one destination.
func newSink(level hclog.Level, json bool, w io.Writer) hclog.SinkAdapter {
	return hclog.NewSinkAdapter(&hclog.LoggerOptions{
		Level: level, JSONFormat: json, Output: w,
		TimeFormat: "2006-01-02T15:04:05.000Z07:00", TimeFn: func() time.Time { return time.Now().UTC() },
	})
}

// Accept implements hclog.SinkAdapter: it is one line.
func (l *Log) Accept(name string, level hclog.Level, msg string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accept(name, level, msg, args...)
	if msg, args := l.output.news(); msg != "" {
		l.accept(name, hclog.Warn, msg, args...)
	}
}

func (l *Log) accept(name string, level hclog.Level, msg string, args ...any) {
	l.sink.Accept(name, level, msg, args...)
	for listener := range l.listeners {
		listener.sink.Accept(name, level, msg, args...)
	}
}

// Prepare opens what a configuration asks for. take goes over to it, and drop
// gives it up again; one of them is to be called. An error changes nothing. It is
// called by one goroutine at a time. Lines are logged while it opens a file.
func (l *Log) Prepare(c config.Log) (take, drop func(), err error) {
	l.mu.Lock()
	next, old := l.output.file, l.output.file
	l.mu.Unlock()
	same := old != nil && old.path == c.File
	if !same {
		next = nil
		if c.File != "" {
			if next, err = openFile(c.File); err != nil {
				return nil, nil, err
			}
		}
	}
	take = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !same && old != nil {
			old.close()
		}
		if next != nil {
			next.limit(c)
		}
		l.config, l.output.file = c, next
		l.sink = newSink(hclog.LevelFromString(c.Level), c.JSON, redactor{&l.secrets, &l.output})
	}
	drop = func() {
		if !same && next != nil {
			next.discard()
		}
	}
	return take, drop, nil
}

// Reopen opens the log file anew, for programs that move it away; where that
// fails the old one is written on.
func (l *Log) Reopen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.output.file == nil {
		return nil
	}
	return l.output.file.reopen()
}

// Close closes the file. What is logged after that goes to standard error alone.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.output.file != nil {
		l.output.file.close()
		l.output.file = nil
	}
}

// output is standard error and the file; Log.mu is held around all of it.
type output struct {
	stderr io.Writer
	file   *file // nil for none
	fault  error // of the last write into the file
	lost   int   // lines, since that began
	told   bool  // that it began
}

// Write never fails: nobody could do anything about it who logs.
func (o *output) Write(line []byte) (int, error) {
	_, _ = o.stderr.Write(line)
	if o.file != nil {
		if o.fault = o.file.write(line); o.fault != nil {
			o.lost++
		}
	}
	return len(line), nil
}

// news is a line about the file that is due.
func (o *output) news() (msg string, args []any) {
	switch {
	case o.fault != nil && !o.told:
		o.told = true
		return "log file cannot be written, lines are missing in it", []any{"path", o.file.path, "error", o.fault}
	case o.fault == nil && o.told:
		lost := o.lost
		o.told, o.lost = false, 0
		return "log file is written again", []any{"lost", lost}
	}
	return "", nil
}
