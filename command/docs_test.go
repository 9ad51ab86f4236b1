package command

import (
	"flag"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

const docs = "../website/content/docs/"

// The documentation names every command, flag, option and endpoint there is.
func TestDocumentationIsComplete(t *testing.T) {
	cliPage, configPage, backendPage := read(t, docs+"commands/index.mdx"), read(t, docs+"configuration.mdx"), read(t, docs+"backends.mdx")

	commands := Commands(Meta{})
	for name, factory := range commands {
		c, err := factory()
		if err != nil {
			t.Fatal(err)
		}
		leaf, ok := c.(*command)
		if !ok || name == "agent" { // whose flags are settings of the files
			continue
		}
		if !strings.Contains(cliPage, "`"+name) {
			t.Errorf("commands/index.mdx: no command %s", name)
		}
		if n := strings.Count(cliPage, "\n| `"+name+" ") + strings.Count(cliPage, "\n| `"+name+"`"); n > 1 {
			t.Errorf("commands/index.mdx: %d rows of %s", n, name)
		}
		leaf.flags.VisitAll(func(f *flag.Flag) {
			if !strings.Contains(cliPage, "`-"+f.Name) && !strings.Contains(configPage, "`-"+f.Name) {
				t.Errorf("commands/index.mdx: no flag -%s of %s", f.Name, name)
			}
		})
	}

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

// exampleOptions is every attribute in config.hcl.example.
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
