// Package bundle takes many captures of a host at once and writes them as one archive with an
// index. It owns time limits, sizes and the archive (bundle.go), and knows what to capture of an
// agent (agent.go) and of the kernel (kernel.go).
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Capture describes one file of a bundle.
type Capture struct {
	File   string // "networks/default/leases.json"
	Source string // where the content comes from, for people
	// Take writes the file. Content written before an error is kept. Take must end soon after ctx.
	Take func(ctx context.Context, w io.Writer) error
}

// Entry is a captured file, or the reason why there is none.
type Entry struct {
	File   string    `json:"file"`
	Source string    `json:"source"`
	Began  time.Time `json:"began"`
	TookMS int64     `json:"took_ms"`
	Bytes  int       `json:"bytes"`
	Error  string    `json:"error,omitempty"` // why it is missing or incomplete

	data []byte
}

// maxFile bounds one file, so that a bundle fits in memory and in an email.
const maxFile = 32 << 20

// Collect takes all captures at once and continues when some fail. hide lists secrets to remove
// from the captured content.
func Collect(ctx context.Context, captures []Capture, hide []string) []Entry {
	out := make([]Entry, len(captures))
	var wg sync.WaitGroup
	for i, c := range captures {
		wg.Go(func() { out[i] = take(ctx, c, hide) })
	}
	wg.Wait()
	return out
}

func take(ctx context.Context, c Capture, hide []string) Entry {
	began := time.Now()
	file := &limitedBuffer{}
	err := c.Take(ctx, file)
	t := Entry{File: c.File, Source: c.Source, Began: began.UTC(), TookMS: time.Since(began).Milliseconds()}
	t.data = redact(file.data(), hide)
	t.Bytes = len(t.data)
	switch {
	case err != nil && ctx.Err() != nil:
		t.Error = "ended before it was done"
	case err != nil:
		t.Error = string(redact([]byte(err.Error()), hide))
	case file.full:
		t.Error = fmt.Sprintf("cut off after %d bytes", maxFile)
	}
	return t
}

// Redacted replaces a secret.
const Redacted = "(secret)"

func redact(data []byte, secrets []string) []byte {
	for _, s := range secrets {
		if s != "" {
			data = bytes.ReplaceAll(data, []byte(s), []byte(Redacted))
		}
	}
	return data
}

// limitedBuffer keeps what is written to it, up to maxFile. It is safe for concurrent use, because an
// abandoned capture may still write.
type limitedBuffer struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	full bool
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf.Len()+len(p) > maxFile {
		b.full = true
		return 0, errors.New("too large")
	}
	return b.buf.Write(p)
}

func (b *limitedBuffer) data() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.buf.Bytes())
}

// IndexFile describes all other files and is the first of the archive.
const IndexFile = "index.json"

// Write writes files below the folder name as a gzipped tar archive, the index first. Only the
// owner may read the unpacked files.
func Write(w io.Writer, name string, index any, files []Entry) error {
	zipped := gzip.NewWriter(w)
	archive := tar.NewWriter(zipped)
	text, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", IndexFile, err)
	}
	all := append([]Entry{{File: IndexFile, Began: time.Now(), data: append(text, '\n')}}, files...)
	for _, f := range all {
		if f.File != IndexFile && len(f.data) == 0 {
			continue // the index has the reason
		}
		head := &tar.Header{Name: name + "/" + f.File, Mode: 0o600, Size: int64(len(f.data)), ModTime: f.Began,
			Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if err := archive.WriteHeader(head); err != nil {
			return fmt.Errorf("%s: %w", f.File, err)
		}
		if _, err := archive.Write(f.data); err != nil {
			return fmt.Errorf("%s: %w", f.File, err)
		}
	}
	return errors.Join(archive.Close(), zipped.Close())
}

// Within bounds the time of a capture.
func Within(limit time.Duration, c Capture) Capture {
	take := c.Take
	c.Take = func(ctx context.Context, w io.Writer) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		err := take(ctx, w)
		if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("no answer within %s: %w", limit, err)
		}
		return err
	}
	return c
}

// sample is one line of a capture over a period.
type sample struct {
	Time   time.Time       `json:"time"`
	Answer json.RawMessage `json:"answer,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// Series captures a JSON response at once and after each interval, for a period, as lines of JSON
// with a timestamp. It returns the last error.
func Series(file, source string, period, interval time.Duration, read func(ctx context.Context) (any, error)) Capture {
	return Capture{file, source, func(ctx context.Context, w io.Writer) error {
		over := time.After(period)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		var last error
		for {
			s := sample{Time: time.Now().UTC()}
			if answer, err := read(ctx); err != nil {
				s.Error, last = err.Error(), err
			} else if s.Answer, err = json.Marshal(answer); err != nil {
				return err
			}
			line, err := json.Marshal(s)
			if err != nil {
				return err
			}
			if _, err := w.Write(append(line, '\n')); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-over:
				return last
			case <-tick.C:
			}
		}
	}}
}

// Stream captures what read writes for a period. It is not an error if read still writes when the
// period ends.
func Stream(file, source string, period time.Duration, read func(ctx context.Context, w io.Writer) error) Capture {
	return Capture{file, source, func(ctx context.Context, w io.Writer) error {
		ctx, cancel := context.WithTimeout(ctx, period)
		defer cancel()
		err := read(ctx, w)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil
		}
		return err
	}}
}

// unsafeChar matches a character that is not usable in a file name.
var unsafeChar = regexp.MustCompile(`[^\w.-]`)

// FileName returns a text as a part of a file name: at most 64 characters, never hidden and never
// a parent directory.
func FileName(text string) string {
	text = strings.TrimLeft(unsafeChar.ReplaceAllString(text, "_"), ".")
	if text == "" {
		return "_"
	}
	return text[:min(len(text), 64)]
}
