package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// Errors holds all errors of all files, in the order of the files and of the lines in each.
type Errors struct {
	Diags hcl.Diagnostics
	files map[string]*hcl.File
}

// Error returns one line for each error: place, what is wrong, and why.
func (e *Errors) Error() string {
	lines := make([]string, len(e.Diags))
	for i, d := range quiet(e.Diags) {
		text := strings.TrimSuffix(d.Summary, ".")
		if d.Detail != "" {
			text += ": " + d.Detail
		}
		if d.Subject != nil {
			text = fmt.Sprintf("%s:%d: %s", d.Subject.Filename, d.Subject.Start.Line, text)
		}
		lines[i] = text
	}
	return strings.Join(lines, "\n")
}

// Render formats the errors for people, each with file, line and the source line. Long texts are wrapped at width
// characters, 0 wraps nothing; color adds terminal escapes.
func (e *Errors) Render(width uint, color bool) string {
	var out strings.Builder
	shown := map[string]*hcl.File{}
	for name, file := range e.files {
		copied := *file
		copied.Bytes = masked(file.Bytes)
		shown[name] = &copied
	}
	w := hcl.NewDiagnosticTextWriter(&out, shown, width, color)
	if err := w.WriteDiagnostics(quiet(e.Diags)); err != nil {
		return e.Error()
	}
	// The text may name the label of a block, which may be a secret.
	text := storeLabel.ReplaceAllString(out.String(), `${1}"(a secret)"`)
	return uuid.ReplaceAllString(text, "(a secret)")
}

// withoutPassword returns an address without a possible password, for use in errors.
func withoutPassword(address string) string {
	at := strings.LastIndexByte(address, '@')
	if at < 0 {
		return address
	}
	scheme, _, found := strings.Cut(address, "://")
	if !found || len(scheme) > at {
		return "(secret)" + address[at:]
	}
	return scheme + "://(secret)" + address[at:]
}

// asErrors orders the diagnostics by file, in reading order, and line. It returns nil when there is no error.
func asErrors(diags hcl.Diagnostics, files map[string]*hcl.File, order []string) error {
	if !diags.HasErrors() {
		return nil
	}
	place := func(d *hcl.Diagnostic) (file, offset int) {
		if d.Subject == nil {
			return -1, 0
		}
		return slices.Index(order, d.Subject.Filename), d.Subject.Start.Byte
	}
	diags = slices.Clone(diags)
	slices.SortStableFunc(diags, func(a, b *hcl.Diagnostic) int {
		fileA, offsetA := place(a)
		fileB, offsetB := place(b)
		return cmp.Or(cmp.Compare(fileA, fileB), cmp.Compare(offsetA, offsetB))
	})
	return &Errors{Diags: diags, files: files}
}
