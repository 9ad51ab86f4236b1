package cli

import (
	"io"
	"strings"

	"github.com/fatih/color"

	"github.com/lenonet/leno/api"
)

// colourWriter is a writer to a terminal that shows colours. paint checks for it.
type colourWriter struct{ io.Writer }

// hasColours reports whether to colour standard output: it is a terminal that shows colours, and the
// user has not turned them off.
func (m Meta) hasColours() bool {
	return m.Terminal && m.Getenv("NO_COLOR") == "" && m.Getenv("TERM") != "dumb"
}

// Paint colours text by the status in it if w shows colours: green passes, yellow recovers without
// help, red needs a person.
func Paint(w io.Writer, status, text string) string {
	if _, ok := w.(colourWriter); !ok {
		return text
	}
	attribute, ok := colourOf(status)
	if !ok {
		return text
	}
	c := color.New(attribute)
	c.EnableColor() // the library checks the process's own standard output
	return c.Sprint(text)
}

// colourOf returns the colour of a status, by its first word.
func colourOf(status string) (color.Attribute, bool) {
	word, _, _ := strings.Cut(strings.TrimSpace(status), " ")
	switch strings.TrimRight(word, ",:") {
	case api.Passing, "held", "running", "ok", "yes":
		return color.FgGreen, true
	case api.Warning, api.PathShort, api.PathLossy, "lapsed", "waits", "waiting":
		return color.FgYellow, true
	case api.Critical, api.PathLost, "left", "failed", "no":
		return color.FgRed, true
	}
	return 0, false
}
