package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/logging"
	"github.com/lenonet/leno/internal/plural"
)

// ErrReported ends a command with exit code 1 when everything has already been printed.
var ErrReported = errors.New("reported")

// usageError is a mistake on the command line; its exit code is 2.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// UsageErrorf returns the error for a mistake on the command line.
func UsageErrorf(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// IsUsageError reports whether an error is a mistake on the command line.
func IsUsageError(err error) bool {
	var usage *usageError
	return errors.As(err, &usage)
}

// unusableConfig is an error in a configuration that an agent cannot start with.
type unusableConfig struct{ error }

func (e *unusableConfig) Unwrap() error { return e.error }

// ConfigError marks an error as one in the configuration. Its exit code is 78, because starting
// again does not help.
func ConfigError(err error) error { return &unusableConfig{err} }

// WriteError prints why a command failed.
func (m Meta) WriteError(err error) {
	if out, ok := m.Stdout.(*checkedOutput); ok && out.err != nil && errors.Is(err, out.err) {
		out.reported = true
	}
	if files, ok := errors.AsType[*config.Errors](err); ok {
		var text strings.Builder
		writeConfigErrors(&text, files)
		io.WriteString(m.Stderr, m.forJournal(text.String()))
		return
	}
	io.WriteString(m.Stderr, m.forJournal(m.errorText(err.Error())))
}

// forJournal marks the lines of an error as such where systemd's journal reads them.
func (m Meta) forJournal(text string) string {
	if !m.ErrorJournal {
		return text
	}
	return logging.ForJournal(hclog.Error, text)
}

// writeConfigErrors prints all errors of configuration files, each with its position and source
// line.
func writeConfigErrors(w io.Writer, e *config.Errors) {
	fmt.Fprint(w, Escape(e.Render(Width, false)))
	fmt.Fprintln(w, plural.Count(len(e.Diags), "error")+" in the configuration")
}

// errorText returns "Error: " and the text. On a terminal, long lines are broken between words;
// elsewhere they stay whole, because programs search them.
func (m Meta) errorText(text string) string {
	var out strings.Builder
	for line := range strings.SplitSeq("Error: "+Escape(text), "\n") {
		if m.ErrorTerminal && DisplayWidth(line) > Width {
			WriteNote(&out, "", line)
		} else {
			fmt.Fprintln(&out, line)
		}
	}
	return out.String()
}
