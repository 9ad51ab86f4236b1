package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestSend(t *testing.T) {
	for _, tt := range []struct{ name, typed, want string }{
		{"until the end", "uname -r\n", "uname -r\n"},
		{"until Ctrl-]", "exit\n\x1drest", "exit\n"},
		{"longer than the buffer", strings.Repeat("x", 1000), strings.Repeat("x", 1000)},
		{"control characters", "\x03\x04", "\x03\x04"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got bytes.Buffer
			if err := send(&got, strings.NewReader(tt.typed)); err != nil || got.String() != tt.want {
				t.Errorf("sent %q, %v; want %q", got.String(), err, tt.want)
			}
		})
	}
}
