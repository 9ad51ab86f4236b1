package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lenonet/leno/command"
	"github.com/lenonet/leno/command/cli"
)

// TestManualPages renders every page with groff and mandoc, which must have nothing to criticize.
func TestManualPages(t *testing.T) {
	dir := t.TempDir()
	write := func(to string) {
		t.Helper()
		if err := run(t.Context(), []string{"-man", to, "-version", "1.0.0", "-date", "1700000000", "-root", root}); err != nil {
			t.Fatal(err)
		}
	}
	write(dir)
	files, err := filepath.Glob(dir + "/man*/*")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d pages, %v", len(files), err)
	}
	for _, checker := range [][]string{
		{"mandoc", "-T", "lint", "-W", "warning"},
		{"groff", "-man", "-ww", "-z", "-T", "utf8"},
	} {
		out, err := exec.Command(checker[0], append(checker[1:], files...)...).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", checker[0], err, out)
		}
	}
	again := t.TempDir()
	write(again)
	if out, err := exec.Command("diff", "--recursive", dir, again).CombinedOutput(); err != nil {
		t.Errorf("two runs differ: %v\n%s", err, out)
	}
}

// rendered returns pages as they appear on a terminal, in one line each.
func rendered(t *testing.T) map[string]string {
	t.Helper()
	pages, err := newSource(t).pages()
	if err != nil {
		t.Fatal(err)
	}
	for name, page := range pages {
		c := exec.Command("mandoc", "-T", "ascii", "-O", "width=1000")
		c.Stdin = strings.NewReader(page)
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var plain []byte
		for _, b := range out { // bold and underlined characters are written over each other
			if b == '\b' {
				plain = plain[:len(plain)-1]
			} else {
				plain = append(plain, b)
			}
		}
		pages[name] = strings.Join(strings.Fields(string(plain)), " ")
	}
	return pages
}

// TestManualPagesAreComplete checks that readers see each command with its help and options, and each option of the
// configuration.
func TestManualPagesAreComplete(t *testing.T) {
	pages := rendered(t)
	contains := func(page, want string) {
		t.Helper()
		if want = strings.Join(strings.Fields(want), " "); !strings.Contains(pages[page], want) {
			t.Errorf("%s lacks %q:\n%s", page, want, pages[page])
		}
	}
	commands := command.Commands(cli.Meta{Getenv: func(string) string { return "" }})
	for name := range commands {
		page := pageName(name) + ".8"
		contains("leno.1", pageName(name)+"(8)")
		leaf, ok := commands.Leaf(name)
		if !ok {
			for _, sub := range commands.Subcommands(name) {
				contains(page, pageName(name+" "+sub)+"(8)")
			}
			continue
		}
		contains(page, strings.ReplaceAll(leaf.Spec.Help, "…", "..."))
		own, common := leaf.Options()
		for _, f := range append(own, common...) {
			contains(page, " "+cli.OptionName(f)+" ")
		}
	}
	for _, o := range newSource(t).options {
		if o.IsBlock() {
			contains("leno.hcl.5", blockTitle(o.Name))
		} else {
			contains("leno.hcl.5", o.last()+" = "+o.exampleValue())
		}
		contains("leno.hcl.5", o.withRestart())
	}
	contains("leno.hcl.5", "the node name stays the same. To change it, restart the agent.")
}
