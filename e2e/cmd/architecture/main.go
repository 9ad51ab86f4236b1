// Architecture draws leno's packages and their imports as an SVG. A package stands
// above every package that it imports. `make architecture` writes the picture of
// the contributors' guide with it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/lenonet/leno/e2e/program"
)

func main() { os.Exit(program.Main("architecture", run)) }

func run(_ context.Context, args []string) error {
	flags := flag.NewFlagSet("architecture", flag.ExitOnError)
	out := flags.String("o", "", "the `file` to write")
	root := flags.String("root", ".", "the module's `directory`")
	flags.Parse(args) // exits on errors
	if *out == "" || flags.NArg() > 0 {
		return errors.New("usage: architecture -o FILE [-root DIRECTORY]")
	}
	imports, err := readImports(*root)
	if err != nil {
		return err
	}
	text, err := draw(imports)
	if err != nil {
		return err
	}
	if err := os.WriteFile(*out, text, 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: %d packages, %d bytes\n", *out, len(imports), len(text))
	return nil
}
