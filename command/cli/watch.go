package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/plural"
)

const (
	// watchWait is how long one read of -watch blocks.
	watchWait = time.Minute
	// watchPause is the least time between two reads without a change: for data without an index,
	// and for agents that respond at once.
	watchPause = time.Second
	// watchSpace is the least time between any two reads.
	watchSpace = 100 * time.Millisecond
)

// WatchFlag is -watch.
type WatchFlag struct{ On bool }

func (f *WatchFlag) Register(fs *flag.FlagSet) {
	fs.BoolVar(&f.On, "watch", false, "keep running until Ctrl-C and print again after every change")
}

// A Reader reads one thing from the agent, blocking as since requests, and returns it with its
// index, or 0 if it has none.
type Reader[T any] func(ctx context.Context, c *api.Client, since api.Read) (T, uint64, error)

// Show prints what read returns, once, or with -watch again after every change. text receives the
// time from which it counts ages.
func Show[T any](
	ctx context.Context, s *Session, watch WatchFlag, read Reader[T], text func(io.Writer, T, time.Time),
) error {
	if !watch.On {
		return s.Call(ctx, func(ctx context.Context, c *api.Client) error {
			v, _, err := read(ctx, c, api.Read{})
			if err != nil {
				return err
			}
			return s.Print(v, func(w io.Writer) { text(w, v, s.Meta.Now()) })
		})
	}
	asJSON, err := s.Format.JSON()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return watchLoop(ctx, s, read, &screen[T]{Session: s, text: text, asJSON: asJSON})
}

// watchLoop reads until ctx ends, which is its normal end. If the agent fails after the first
// read, it keeps trying.
func watchLoop[T any](ctx context.Context, s *Session, read Reader[T], screen *screen[T]) error {
	var index uint64
	for first := true; ; first = false {
		started := time.Now()
		var v T
		var next uint64
		limit := watchWait + watchWait/16 + CallTimeout
		err := s.Agent.CallWithin(ctx, limit, "", func(ctx context.Context, c *api.Client) (err error) {
			v, next, err = read(ctx, c, api.Read{Index: index, Wait: watchWait})
			return err
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (first || IsUsageError(err)):
			return err
		case err != nil:
			next = 0
			screen.reportError(err)
		default:
			if err := screen.draw(v); err != nil {
				return err
			}
		}
		pause := watchSpace
		if next == 0 || next == index {
			pause = watchPause - time.Since(started)
		}
		if next < index {
			next = 0 // the agent or its store was restarted
		}
		index = next
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(pause, watchSpace)):
		}
	}
}

// screen prints one thing repeatedly. A terminal shows the latest state, with growing ages. A pipe
// or a file gets one block of lines for each state that differs by more than its age.
type screen[T any] struct {
	*Session
	text   func(io.Writer, T, time.Time)
	asJSON bool

	printed   string    // what was printed last
	printedAt time.Time // when it was printed
}

func (s *screen[T]) render(v T, now time.Time) (string, error) {
	var out strings.Builder
	if s.asJSON {
		err := WriteJSON(&out, v)
		return out.String(), err
	}
	var w io.Writer = &out
	if _, ok := s.output().(colourWriter); ok {
		w = colourWriter{&out}
	}
	s.text(w, v, now)
	return out.String(), nil
}

func (s *screen[T]) draw(v T) error {
	now := s.Meta.Now()
	if !s.Meta.Terminal || s.asJSON {
		// Render it as of the last print, so that ages do not count as a change.
		before, err := s.render(v, s.printedAt)
		if err != nil || before == s.printed {
			return err
		}
	}
	text, err := s.render(v, now)
	if s.Meta.Terminal && !s.asJSON && s.Meta.Size != nil {
		text = cutToScreen(text, s.Meta.Size)
	}
	if err != nil || text == s.printed {
		return err
	}
	first := s.printed == ""
	s.printed, s.printedAt = text, now
	switch {
	case s.Meta.Terminal && !s.asJSON:
		// Write from the top left over the old text, and clear the rest.
		text = "\x1b[H" + strings.ReplaceAll(text, "\n", "\x1b[K\n") + "\x1b[J"
		if first {
			text = "\x1b[2J" + text
		}
	case !first && !s.asJSON:
		text = "\n" + text
	}
	_, err = io.WriteString(s.Meta.Stdout, text)
	return err
}

// cutToScreen drops the lines that do not fit the terminal and prints how many. The last row is
// for the cursor. If the size is unknown, nothing is cut.
func cutToScreen(text string, size func() (columns, rows int)) string {
	columns, rows := size()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if columns < 1 || rows < 3 {
		return text
	}
	taken, fits := 0, 0 // fits is the number of lines that leave a row for the count of the rest
	for n, line := range lines {
		taken += max(1, (DisplayWidth(colourCodes.ReplaceAllString(line, ""))+columns-1)/columns)
		if taken <= rows-2 {
			fits = n + 1
		}
	}
	if taken <= rows-1 {
		return text
	}
	return strings.Join(append(lines[:fits:fits], "and "+plural.Count(len(lines)-fits, "more line")), "\n") + "\n"
}

// colourCodes matches colour codes, which take no column.
var colourCodes = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// reportError prints on standard error why there is no response at present.
func (s *screen[T]) reportError(err error) {
	text := err.Error()
	if text == s.printed {
		return
	}
	s.printed = text
	s.Meta.WriteError(err)
}

// WaitFlag is -wait, alone or with a duration after "=".
type WaitFlag struct {
	Limit time.Duration // 0 for not waiting
}

// defaultWait is the limit of -wait without a duration.
const defaultWait = time.Minute

func (f *WaitFlag) Register(fs *flag.FlagSet, what string) {
	fs.Var(f, "wait", "wait up to `duration`, 1m if none is given, until "+what)
}

func (f *WaitFlag) String() string {
	if f.Limit == 0 {
		return ""
	}
	return f.Limit.String()
}

func (f *WaitFlag) IsBoolFlag() bool { return true }

func (f *WaitFlag) Set(value string) error {
	if on, err := strconv.ParseBool(value); err == nil {
		f.Limit = 0
		if on {
			f.Limit = defaultWait
		}
		return nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		return errors.New("is not a duration such as 30s")
	}
	f.Limit = d
	return nil
}

// Await calls done until it succeeds, ctx ends or the limit is over. It returns nil or the last
// error.
func Await(ctx context.Context, limit time.Duration, done func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last error
	for {
		err := done(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s: %w", limit, last)
		case <-time.After(waitPause):
		}
	}
}

// waitPause is the time between two checks of -wait.
const waitPause = 250 * time.Millisecond
