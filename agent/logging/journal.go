package logging

import (
	"fmt"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// ForJournal puts the priority of a level before each line, for example "<4>" for a warning: systemd's journal removes
// it and keeps it as the line's priority (sd-daemon(3)). Without it, `journalctl -p warning` would find nothing.
func ForJournal(level hclog.Level, text string) string {
	priority := 6 // LOG_INFO
	switch level {
	case hclog.Error:
		priority = 3
	case hclog.Warn:
		priority = 4
	case hclog.Debug, hclog.Trace:
		priority = 7
	}
	var out strings.Builder
	for line := range strings.Lines(text) {
		fmt.Fprintf(&out, "<%d>%s", priority, line)
	}
	return out.String()
}
