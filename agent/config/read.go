package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
)

// labels are those of the blocks that have one.
var labels = map[string][]string{"network": {"name"}, "backend": {"type"}}

// options reads the options that are directly in a block, or in a file, into their settings. It returns the blocks
// there, and whether there was anything. The path of the block is "" for a file.
func (l *loader) options(body hcl.Body, path string, settings []Setting) (blocks hcl.Blocks, found bool) {
	var schema hcl.BodySchema
	direct := map[string]Setting{}
	for _, s := range settings {
		name, ok := strings.CutPrefix(s.Name, strings.TrimPrefix(path+".", "."))
		switch {
		case !ok || strings.ContainsAny(name, "./"): // in another block, or the two pools as one value
		case s.IsBlock():
			schema.Blocks = append(schema.Blocks, hcl.BlockHeaderSchema{Type: name, LabelNames: labels[name]})
		default:
			schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: name})
			direct[name] = s
		}
	}
	if path == "" {
		schema.Blocks = append(schema.Blocks, hcl.BlockHeaderSchema{Type: "network", LabelNames: labels["network"]})
	}
	content, diags := body.Content(&schema)
	l.diags = append(l.diags, diags...)
	if !diags.HasErrors() {
		l.diags = append(l.diags, nullBlocks(body, schema.Blocks)...)
	}
	for _, a := range schema.Attributes {
		if given := content.Attributes[a.Name]; given != nil {
			l.option(direct[a.Name], given)
		}
	}
	byType := content.Blocks.ByType()
	for _, b := range content.Blocks {
		of := byType[b.Type]
		if len(of) == 1 || b.Type == "network" {
			blocks = append(blocks, b)
		} else if b == of[1] {
			l.report(b.DefRange, fmt.Sprintf("Duplicate %s block", b.Type),
				"Only one %s block is allowed. Another was defined at %s", b.Type, of[0].DefRange)
		}
	}
	return blocks, len(content.Attributes)+len(content.Blocks) > 0
}

// nullBlocks returns errors about blocks that are null in JSON, which the parser takes for no block.
func nullBlocks(body hcl.Body, blocks []hcl.BlockHeaderSchema) (out hcl.Diagnostics) {
	var find func(e hcl.Expression, name string, labels int)
	find = func(e hcl.Expression, name string, labels int) {
		if v, diags := e.Value(nil); !diags.HasErrors() && v.IsNull() {
			out = append(out, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: "Null block", Subject: e.Range().Ptr(),
				Detail: fmt.Sprintf("The %s block is null: remove it, or write {}.", name)})
			return
		}
		elements, _ := hcl.ExprList(e)
		for _, element := range elements {
			find(element, name, labels)
		}
		if labels == 0 {
			return
		}
		pairs, _ := hcl.ExprMap(e)
		for _, pair := range pairs {
			if key, _ := pair.Key.Value(nil); !key.RawEquals(cty.StringVal("//")) { // not a comment
				find(pair.Value, name, labels-1)
			}
		}
	}
	for _, b := range blocks {
		content, _, _ := body.PartialContent(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: b.Type}}})
		if a := content.Attributes[b.Type]; a != nil {
			find(a.Expr, b.Type, len(b.LabelNames))
		}
	}
	return out
}

// block reads a block that is not that of a network, and those in it. A block of another store than Consul makes that
// the store, even if it is empty, with its defaults.
func (l *loader) block(b *hcl.Block, path string) {
	if l.blocks[path] == nil {
		l.blocks[path] = &b.DefRange
		if path == StoreEtcd || path == StoreKubernetes {
			resetAll(l.settings, func(s Setting) bool { return isBelow(s.Name, path) })
		}
	}
	inner, _ := l.options(b.Body, path, l.settings)
	for _, b := range inner {
		l.block(b, path+"."+b.Type)
	}
}

// isBelow reports whether a setting is in a block or in a block in it.
func isBelow(name, block string) bool { return strings.HasPrefix(name, block+".") }

// option reads an option into its setting. A null sets nothing, and an invalid value is reported.
func (l *loader) option(s Setting, a *hcl.Attribute) {
	v, diags := a.Expr.Value(nil)
	l.diags = append(l.diags, diags...)
	if diags.HasErrors() {
		l.refused[s.Name] = true
		return
	}
	if v.IsNull() {
		return
	}
	err := s.set(v)
	if err == nil {
		l.by[s.Name] = a
		return
	}
	l.refused[s.Name] = true
	l.refuse(a, err)
}

// refuse reports the errors that are joined in err at an attribute, or at the elements of the list.
func (l *loader) refuse(a *hcl.Attribute, err error) {
	for _, err := range flatten(err) {
		where := a.Expr.Range()
		var element elementError
		if elements, diags := hcl.ExprList(a.Expr); errors.As(err, &element) && !diags.HasErrors() {
			where = elements[element.index].Range()
		}
		l.report(where, invalidValue(a), "%s", err)
	}
}

// at reports that an attribute's value is wrong.
func (l *loader) at(a *hcl.Attribute, format string, args ...any) {
	l.report(a.Expr.Range(), invalidValue(a), format, args...)
}

func invalidValue(a *hcl.Attribute) string { return fmt.Sprintf("Invalid value for %q", a.Name) }

// report adds an error at a place. It ends the detail with a full stop, as hcl does.
func (l *loader) report(place hcl.Range, summary, format string, args ...any) {
	detail := fmt.Sprintf(format, args...)
	if !strings.HasSuffix(detail, ".") && !strings.HasSuffix(detail, "?") {
		detail += "."
	}
	l.diags = append(l.diags, &hcl.Diagnostic{
		Severity: hcl.DiagError,
		Summary:  summary,
		Detail:   detail,
		Subject:  place.Ptr(),
	})
}

// unplaced adds an error that belongs to no line of a file.
func (l *loader) unplaced(summary, detail string) {
	l.diags = append(l.diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: detail})
}

// flatten returns a joined error's parts, in order. It splits only errors whose text reads like a join: fmt.Errorf
// with two %w is one sentence.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || err.Error() != errors.Join(joined.Unwrap()...).Error() {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, flatten(e)...)
	}
	return out
}
