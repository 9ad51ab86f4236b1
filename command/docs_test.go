package command

import (
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/lenonet/leno/command/cli"
)

const docs = "../website/content/docs/"

// The documentation names every existing option and backend. Commands and their flags have their
// own pages: TestCommandPages.
func TestDocumentationIsComplete(t *testing.T) {
	configPage, backendPage := read(t, docs+"configuration.mdx"), read(t, docs+"backends.mdx")
	for _, option := range exampleOptions(t) {
		if !regexp.MustCompile("[`.]" + option + "`").MatchString(configPage + backendPage) {
			t.Errorf("configuration.mdx: no option %s", option)
		}
	}
	for name := range NewMeta("", nil).Backends {
		if !strings.Contains(backendPage, "\n## "+name+"\n") {
			t.Errorf("backends.mdx: no backend %s", name)
		}
	}
}

// exampleOptions returns every attribute in config.hcl.example.
func exampleOptions(t *testing.T) []string {
	t.Helper()
	const path = "../config.hcl.example"
	file, diags := hclsyntax.ParseConfig([]byte(read(t, path)), path, hcl.InitialPos)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	var options []string
	var walk func(*hclsyntax.Body)
	walk = func(b *hclsyntax.Body) {
		for name := range b.Attributes {
			options = append(options, name)
		}
		for _, block := range b.Blocks {
			walk(block.Body)
		}
	}
	walk(file.Body.(*hclsyntax.Body))
	if len(options) < 30 {
		t.Fatalf("only %d options in %s", len(options), path)
	}
	return options
}

// TestManualPage: the manual page describes each command as its help does.
func TestManualPage(t *testing.T) {
	page := read(t, "../packaging/leno.1")
	for name, factory := range Commands(cli.Meta{}) {
		if strings.Contains(name, " ") {
			continue
		}
		c, err := factory()
		if err != nil {
			t.Fatal(err)
		}
		if want := "\n.TP\n.B " + name + "\n" + c.Synopsis() + ".\n"; !strings.Contains(page, want) {
			t.Errorf("packaging/leno.1 lacks%s", want)
		}
	}
}
