// Reference writes what is generated from leno's code: the JSON Schema of the configuration, the pages of the commands
// and of the API, and tables in other pages, which `make docs` updates, and manual pages, which tools/release puts into
// the packages.
package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"time"

	"github.com/lenonet/leno/e2e/program"
)

func main() { os.Exit(program.Main("reference", run)) }

func run(_ context.Context, args []string) error {
	flags := flag.NewFlagSet("reference", flag.ExitOnError)
	docs := flags.Bool("docs", false, "write the generated files of the source tree")
	man := flags.String("man", "", "the `directory` to write manual pages to, in man1, man5 and man8")
	version := flags.String("version", "", "the `version` that the pages describe")
	date := flags.Int64("date", 0, "the date of the pages, in `seconds` since 1970")
	root := flags.String("root", ".", "the module's `directory`")
	flags.Parse(args) // exits on errors
	if flags.NArg() > 0 || !*docs && *man == "" {
		return errors.New("usage: reference [-docs] [-man DIRECTORY -version VERSION -date SECONDS] [-root DIRECTORY]")
	}
	src := source{root: *root, version: *version, date: time.Unix(*date, 0).UTC()}
	if err := src.read(); err != nil {
		return err
	}
	if *docs {
		if err := src.writeGenerated(); err != nil {
			return err
		}
	}
	if *man == "" {
		return nil
	}
	pages, err := src.pages()
	if err != nil {
		return err
	}
	for name, text := range pages {
		file := filepath.Join(*man, "man"+name[len(name)-1:], name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
