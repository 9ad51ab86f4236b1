package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// Errors is everything that is wrong with all files, in the order of the files
// and of the lines in each.
type Errors struct {
	Diags hcl.Diagnostics
	files map[string]*hcl.File
}

// Error is one line for each error: place, what is wrong, and why.
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

// Render is the errors as a person wants to read them, each with file, line and
// the source line. Long texts are wrapped at width characters, 0 wraps nothing;
// color adds terminal escapes.
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
	return uuid.ReplaceAllString(out.String(), "(a secret)") // a block's label is named, too
}

// withoutPassword is an address without what may be one: it goes into errors.
func withoutPassword(address string) string {
	at := strings.LastIndexByte(address, '@')
	if at < 0 {
		return address
	}
	scheme, _, found := strings.Cut(address, "://")
	if !found || len(scheme) > at {
		return "…" + address[at:]
	}
	return scheme + "://…" + address[at:]
}

// asErrors orders the diagnostics by file, as read, and line. It is nil when
// there is no error.
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
