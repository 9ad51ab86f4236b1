package config

import (
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// Format returns src in canonical layout. A syntax error is an *Errors and formats nothing; names and values are not
// checked. JSON is refused.
func Format(src []byte, filename string) ([]byte, error) {
	if isJSON(filename) {
		return nil, fmt.Errorf("%s: only HCL's native syntax is formatted, not JSON", filename)
	}
	file, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	if err := asErrors(diags, map[string]*hcl.File{filename: file}, []string{filename}); err != nil {
		return nil, err
	}
	return hclwrite.Format(src), nil
}

func isJSON(filename string) bool { return strings.HasSuffix(filename, ".json") }
