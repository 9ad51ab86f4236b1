package config

import (
	"strings"
	"time"
)

// FormatDuration formats a duration as a person would write it: 2m, not 2m0s.
func FormatDuration(d time.Duration) string {
	text := d.String()
	if minutes, ok := strings.CutSuffix(text, "m0s"); ok {
		text = minutes + "m"
	}
	if hours, ok := strings.CutSuffix(text, "h0m"); ok {
		text = hours + "h"
	}
	return text
}
