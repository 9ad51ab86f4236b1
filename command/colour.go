package command

import (
	"io"
	"strings"

	"github.com/fatih/color"

	"github.com/lenonet/leno/api"
)

// coloured is a writer to a terminal that shows colours. Whoever writes a verdict
// asks paint, which knows what it writes to.
type coloured struct{ io.Writer }

// colours says whether standard output takes colours: a terminal that shows them
// and nobody who asked for none.
func (m Meta) colours() bool {
	return m.Terminal && m.Getenv("NO_COLOR") == "" && m.Getenv("TERM") != "dumb"
}

// paint colours text by the status in it when w shows colours: green is well,
// yellow mends itself, red wants a person.
func paint(w io.Writer, status, text string) string {
	if _, ok := w.(coloured); !ok {
		return text
	}
	attribute, ok := colourOf(status)
	if !ok {
		return text
	}
	c := color.New(attribute)
	c.EnableColor() // the library looks at the process's own standard output
	return c.Sprint(text)
}

// colourOf is the colour of a status, by its first word.
func colourOf(status string) (color.Attribute, bool) {
	word, _, _ := strings.Cut(strings.TrimSpace(status), " ")
	switch strings.TrimRight(word, ",:") {
	case api.Passing, "held", "running", "ok", "yes":
		return color.FgGreen, true
	case api.Warning, "lapsed", "waits", "waiting":
		return color.FgYellow, true
	case api.Critical, "left", "failed", "no":
		return color.FgRed, true
	}
	return 0, false
}
