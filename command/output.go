package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// width is what every table and text is made to fit.
const width = 80

// gap stands between two columns.
const gap = "  "

// column is one column of a table.
type column struct {
	title string
	// cut lets the column be shortened, to no less than eight characters, when
	// the table is too wide. Addresses and numbers are never cut.
	cut bool
}

const minCut = 8

// table prints rows under their titles, aligned, within width where the columns
// that may be cut allow it. Cells are made printable: names and reasons
// may come from other hosts.
func table(w io.Writer, columns []column, rows [][]string) {
	widths := make([]int, len(columns))
	cells := make([][]string, 0, len(rows)+1)
	head := make([]string, len(columns))
	for i, c := range columns {
		head[i] = c.title
	}
	for _, row := range append([][]string{head}, rows...) {
		line := make([]string, len(columns))
		for i := range columns {
			line[i] = oneLine(row[i])
			widths[i] = max(widths[i], utf8.RuneCountInString(line[i]))
		}
		cells = append(cells, line)
	}
	fit(columns, widths)
	for _, row := range cells {
		var b strings.Builder
		for i, cell := range row {
			cell = shorten(cell, widths[i])
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)) + gap)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// fit takes from the widest column that may be cut until the line fits.
func fit(columns []column, widths []int) {
	for {
		total := len(gap) * (len(widths) - 1)
		widest := -1
		for i, n := range widths {
			total += n
			if columns[i].cut && n > minCut && (widest < 0 || n > widths[widest]) {
				widest = i
			}
		}
		if total <= width || widest < 0 {
			return
		}
		widths[widest]--
	}
}

func shorten(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// pair is one line of a description.
type pair struct{ name, value string }

// pairs prints names and values in two columns, long values wrapped. Pairs
// without a value are left out.
func pairs(w io.Writer, list []pair) {
	longest := 0
	for _, p := range list {
		if p.value != "" {
			longest = max(longest, utf8.RuneCountInString(p.name))
		}
	}
	for _, p := range list {
		if p.value == "" {
			continue
		}
		lead := p.name + strings.Repeat(" ", longest-utf8.RuneCountInString(p.name)) + gap
		for _, line := range wrap(oneLine(p.value), width-longest-len(gap)) {
			fmt.Fprintln(w, lead+line)
			lead = strings.Repeat(" ", longest) + gap
		}
	}
}

// note prints a text behind an indent, wrapped, with later lines further in.
func note(w io.Writer, indent, text string) {
	const hang = "    "
	for i, line := range wrap(oneLine(text), width-len(indent)-len(hang)) {
		if i == 1 {
			indent += hang
		}
		fmt.Fprintln(w, indent+line)
	}
}

// wrap breaks text between words so that lines have at most n characters; a
// longer word keeps a line of its own.
func wrap(text string, n int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= n:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}

// printable escapes what could move a terminal's cursor or hide text. Line ends
// and tabs stay.
func printable(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r) || r == '\n' || r == '\t':
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// oneLine is printable without line ends and tabs.
func oneLine(s string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(printable(s))
}

// printJSON prints v as people read JSON. What could steer a terminal is escaped:
// encoding/json does that with what is below a space only.
func printJSON(w io.Writer, v any) error {
	var out strings.Builder
	enc := json.NewEncoder(&out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w, escapeJSON(out.String()))
	return err
}

// escapeJSON is the same JSON with everything escaped that does not print, which
// only strings have.
func escapeJSON(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case unicode.IsPrint(r) || r == '\n':
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// age is a duration as two units at most: "5s", "3m20s", "2h5m", "4d3h".
func age(d time.Duration) string {
	switch d = max(d, 0).Truncate(time.Second); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	day := 24 * time.Hour
	return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
}

// byteCount is a count of bytes in binary units: "512 B", "1.5 MiB".
func byteCount(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1024, 0
	for ; value >= 1024; value /= 1024 {
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTPE"[unit])
}

// join is a list as one cell.
func join[T fmt.Stringer](list []T, sep string) string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.String()
	}
	return strings.Join(out, sep)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
