package command

import (
	"strings"
	"testing"

	"github.com/lenonet/leno/command/cli"
)

// TestManualPage: the manual page describes each command as its help does.
func TestManualPage(t *testing.T) {
	page := read(t, "../packaging/leno.1")
	for name, factory := range Commands(cli.Meta{Getenv: func(string) string { return "" }}) {
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
