package config

import (
	"bytes"
	"fmt"
	"path/filepath"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// Format returns src in canonical layout. A syntax error is an *Errors and formats nothing; names and values are not
// checked. JSON is refused.
func Format(src []byte, filename string) ([]byte, error) {
	if isJSON(filename, src) {
		return nil, fmt.Errorf("%s: only HCL's native syntax is formatted, not JSON", filename)
	}
	file, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	if err := asErrors(diags, map[string]*hcl.File{filename: file}, []string{filename}); err != nil {
		return nil, err
	}
	return hclwrite.Format(src), nil
}

// isJSON reports whether a file is JSON: by its name or, if that ends in neither .json nor .hcl, by its first
// character.
func isJSON(filename string, src []byte) bool {
	switch filepath.Ext(filename) {
	case ".json":
		return true
	case ".hcl":
		return false
	}
	return bytes.HasPrefix(bytes.TrimSpace(src), []byte("{"))
}
