package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	xwidth "golang.org/x/text/width"
)

// checkedOutput is standard output. It remembers the first failed write, so that printing a table
// or a sentence need not return an error.
type checkedOutput struct {
	io.Writer
	err      error // of the first write that failed
	reported bool  // the error was printed
}

func (o *checkedOutput) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if err == nil {
		return n, nil
	}
	if o.err == nil {
		o.err = fmt.Errorf("standard output: %w", err)
	}
	return n, o.err
}

// Width is the maximum width of tables and texts.
const Width = 80

// gap separates two columns.
const gap = "  "

// Column is one column of a table.
type Column struct {
	Title string
	// Cut allows the column to be shortened, to no less than eight characters, when the table is
	// too wide. Addresses and numbers are never cut.
	Cut bool
}

const minCut = 8

// WriteTable prints rows under their titles, aligned, within Width, and shortens columns that may be
// cut. If that is not enough, as with long IPv6 addresses, every row becomes a block of full
// lines. Cells are made printable, because names and reasons may come from other hosts.
func WriteTable(w io.Writer, columns []Column, rows [][]string) {
	widths := make([]int, len(columns))
	cells := make([][]string, 0, len(rows)+1)
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.Title
	}
	for _, row := range append([][]string{titles}, rows...) {
		line := make([]string, len(columns))
		for i := range columns {
			line[i] = EscapeLine(row[i])
			widths[i] = max(widths[i], DisplayWidth(line[i]))
		}
		cells = append(cells, line)
	}
	if !fit(columns, widths) {
		writeBlocks(w, columns, cells[1:])
		return
	}
	for n, row := range cells {
		var b strings.Builder
		for i, cell := range row {
			cell = shorten(cell, widths[i])
			space := strings.Repeat(" ", widths[i]-DisplayWidth(cell)) + gap
			if isStatus(columns[i].Title) && n > 0 {
				cell = Paint(w, cell, cell)
			}
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(space)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// isStatus reports whether the column with this title is coloured.
func isStatus(title string) bool {
	return slices.ContainsFunc([]string{"status", "state", "lease", "health"},
		func(t string) bool { return strings.EqualFold(title, t) })
}

// writeBlocks prints each row as lines of title and cell.
func writeBlocks(w io.Writer, columns []Column, rows [][]string) {
	for n, row := range rows {
		if n > 0 {
			fmt.Fprintln(w)
		}
		list := make([]Pair, len(columns))
		for i, c := range columns {
			list[i] = Pair{c.Title, row[i]}
		}
		WritePairs(w, list)
	}
}

// fit shortens the widest column that may be cut until the line fits, and reports whether it does.
func fit(columns []Column, widths []int) bool {
	for {
		total := len(gap) * (len(widths) - 1)
		widest := -1
		for i, n := range widths {
			total += n
			if columns[i].Cut && n > minCut && (widest < 0 || n > widths[widest]) {
				widest = i
			}
		}
		if total <= Width || widest < 0 {
			return total <= Width
		}
		widths[widest]--
	}
}

// DisplayWidth returns how many terminal columns a printable text takes: characters of East Asian
// scripts take two, combining characters none.
func DisplayWidth(s string) int {
	n := 0
	for _, r := range s {
		n += columnsOfRune(r)
	}
	return n
}

func columnsOfRune(r rune) int {
	switch kind := xwidth.LookupRune(r).Kind(); {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case kind == xwidth.EastAsianWide, kind == xwidth.EastAsianFullwidth:
		return 2
	}
	return 1
}

// shorten cuts a text to n columns.
func shorten(s string, n int) string {
	if DisplayWidth(s) <= n {
		return s
	}
	return strings.TrimRight(head(s, n-1), " ") + "…"
}

// head returns the part of s that fits into n columns, but at least one character.
func head(s string, n int) string {
	taken := 0
	for i, r := range s {
		if taken += columnsOfRune(r); taken > n && i > 0 {
			return s[:i]
		}
	}
	return s
}

// Pair is one line of a description: a name and a value.
type Pair [2]string

// WritePairs prints names and values in two columns, with long values wrapped. Pairs without a
// value are left out.
func WritePairs(w io.Writer, list []Pair) {
	longest := 0
	names := make([]string, len(list))
	for i, p := range list {
		names[i] = shorten(EscapeLine(p[0]), Width/2) // the name may come from another host
		if p[1] != "" {
			longest = max(longest, DisplayWidth(names[i]))
		}
	}
	for i, p := range list {
		name, value := names[i], p[1]
		if value == "" {
			continue
		}
		lead := name + strings.Repeat(" ", longest-DisplayWidth(name)) + gap
		for _, line := range Wrap(EscapeLine(value), Width-longest-len(gap)) {
			if isStatus(name) {
				line = Paint(w, value, line)
			}
			fmt.Fprintln(w, lead+line)
			lead = strings.Repeat(" ", longest) + gap
		}
	}
}

// Printf prints a paragraph, wrapped.
func Printf(w io.Writer, format string, args ...any) { WriteNote(w, "", fmt.Sprintf(format, args...)) }

// WriteNote prints a text after an indent, wrapped, with later lines indented further.
func WriteNote(w io.Writer, indent, text string) {
	const hang = "    "
	for i, line := range Wrap(EscapeLine(text), Width-len(indent)-len(hang)) {
		if i == 1 {
			indent += hang
		}
		fmt.Fprintln(w, indent+line)
	}
}

// WriteItem prints a text after a mark such as "!", wrapped.
func WriteItem(w io.Writer, mark, text string) {
	lead := "  " + mark + " "
	for _, line := range Wrap(EscapeLine(text), Width-8) {
		fmt.Fprintln(w, lead+line)
		lead = "        "
	}
}

// splitWords splits a text into words. A command in backticks is one word if it fits a line of n
// columns. Otherwise it is one word per line, with a backslash at the end of all but the last, so
// that it can be pasted.
func splitWords(text string, n int) []string {
	var out []string
	words := strings.Fields(text)
	for i := 0; i < len(words); i++ {
		end := -1
		if strings.Count(words[i], "`") == 1 {
			end = slices.IndexFunc(words[i+1:], func(w string) bool { return strings.Contains(w, "`") })
		}
		if end < 0 {
			out = append(out, words[i])
			continue
		}
		command := words[i : i+end+2]
		i += end + 1
		if whole := strings.Join(command, " "); DisplayWidth(whole) <= n {
			out = append(out, whole)
			continue
		}
		const more = " \\"
		line := command[0]
		for _, word := range command[1:] {
			if DisplayWidth(line)+1+DisplayWidth(word)+len(more) > n {
				out, line = append(out, line+more), word
			} else {
				line += " " + word
			}
		}
		out = append(out, line)
	}
	return out
}

// Wrap breaks text between words into lines of at most n columns. It also breaks a longer word,
// but not a command.
func Wrap(text string, n int) []string {
	var lines []string
	line := ""
	for _, word := range splitWords(text, n) {
		if line != "" && DisplayWidth(line)+1+DisplayWidth(word) <= n {
			line += " " + word
			continue
		}
		if line != "" {
			lines = append(lines, line)
		}
		for DisplayWidth(word) > n {
			part := head(word, n)
			if part == word {
				break
			}
			lines, word = append(lines, part), word[len(part):]
		}
		line = word
	}
	return append(lines, line)
}

// Escape escapes characters that could move a terminal's cursor or hide text. Line ends and
// tabs stay.
func Escape(s string) string {
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

// EscapeLine is like Escape, but replaces line ends and tabs with spaces.
func EscapeLine(s string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(Escape(s))
}

// WriteJSON prints v as indented JSON. Everything that could control a terminal is escaped;
// encoding/json escapes only characters below a space.
func WriteJSON(w io.Writer, v any) error {
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

// escapeJSON escapes every character that is not printable. In JSON only strings contain such
// characters.
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

// Age returns a duration with at most two units: "5s", "3m20s", "2h5m", "4d3h".
func Age(d time.Duration) string {
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

// ByteCount returns a count of bytes in binary units: "512 B", "1.5 MiB".
func ByteCount(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1024, 0
	for ; value >= 1024; value /= 1024 {
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTPE"[unit])
}

// Join returns a list as one cell.
func Join[T fmt.Stringer](list []T) string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.String()
	}
	return strings.Join(out, ", ")
}
