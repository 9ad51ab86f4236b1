// Package logging writes the agent's log: to standard error, to a file, and to listeners. All of these may change
// while the agent runs, and known secrets are removed from every line. The package does not decide what is logged.
package logging

import (
	"io"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
)

// Log is the agent's log. It is safe for concurrent use. A failure of its file or its listeners never affects the
// code that logs.
type Log struct {
	logger  hclog.InterceptLogger
	secrets secrets

	mu        sync.Mutex // held around every line
	config    config.Log
	sink      hclog.SinkAdapter // standard error and file
	output    output
	listeners map[*Listener]bool
	dismissed bool // no more listeners are accepted
}

// New opens the log. journal tells that systemd's journal reads standard error, so that lines get their priority there.
// An error is that of the file, and names its option.
func New(stderr io.Writer, journal bool, c config.Log) (*Log, error) {
	l := &Log{output: output{stderr: stderr, journal: journal}, listeners: map[*Listener]bool{}}
	take, _, err := l.Prepare(c)
	if err != nil {
		return nil, err
	}
	take()
	// Each destination has its own level and format, so the logger has none.
	l.logger = hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "leno", Level: hclog.Off, Output: io.Discard})
	l.logger.RegisterSink(l)
	return l, nil
}

// Logger returns a logger that writes into the log. Its level is not the log's: asking it whether a level is enabled
// gives no information, and setting it has no effect.
func (l *Log) Logger() hclog.Logger { return l.logger }

// Hide replaces a secret in every line from now on.
func (l *Log) Hide(secret string) { l.secrets.add(secret) }

// newSink formats lines for one destination.
func newSink(level hclog.Level, json bool, w io.Writer) hclog.SinkAdapter {
	return hclog.NewSinkAdapter(&hclog.LoggerOptions{
		Level: level, JSONFormat: json, Output: w,
		TimeFormat: "2006-01-02T15:04:05.000Z07:00", TimeFn: func() time.Time { return time.Now().UTC() },
	})
}

// Accept writes one line. It implements hclog.SinkAdapter.
func (l *Log) Accept(name string, level hclog.Level, msg string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accept(name, level, msg, args...)
	if msg, args := l.output.news(); msg != "" {
		l.accept(name, hclog.Warn, msg, args...)
	}
}

func (l *Log) accept(name string, level hclog.Level, msg string, args ...any) {
	l.output.level = level
	l.sink.Accept(name, level, msg, args...)
	for listener := range l.listeners {
		listener.sink.Accept(name, level, msg, args...)
	}
}

// Prepare opens what a configuration needs. take switches to it, and drop discards it; the caller must call one of
// them. An error changes nothing. One goroutine at a time calls Prepare. Logging goes on while it opens a file.
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

// Reopen opens the log file again, for programs that move it away; if that fails, the old file stays in use.
func (l *Log) Reopen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.output.file == nil {
		return nil
	}
	return l.output.file.reopen()
}

// Close closes the file. Later lines go to standard error only.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.output.file != nil {
		l.output.file.close()
		l.output.file = nil
	}
}

// output writes to standard error and the file. Callers hold Log.mu.
type output struct {
	stderr  io.Writer
	journal bool
	level   hclog.Level // of the line that is written
	file    *file       // nil for none
	fault   error       // of the last write to the file
	lost    int         // lines, since the fault began
	told    bool        // the fault has been logged
}

// Write never fails: the code that logs could not handle an error.
func (o *output) Write(line []byte) (int, error) {
	if o.journal {
		_, _ = io.WriteString(o.stderr, ForJournal(o.level, string(line)))
	} else {
		_, _ = o.stderr.Write(line)
	}
	if o.file != nil {
		if o.fault = o.file.write(line); o.fault != nil {
			o.lost++
		}
	}
	return len(line), nil
}

// news returns a message about the file that is due, or "".
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
