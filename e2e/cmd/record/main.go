// Record runs a command on a terminal of its own and draws its output, with its timing, as an
// animated SVG. `make recording` uses it for the picture of the demo.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/lenonet/leno/e2e/program"
)

func main() { os.Exit(program.Main("record", run)) }

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("record", flag.ExitOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: record -o FILE [flags] COMMAND...")
		flags.PrintDefaults()
	}
	out := flags.String("o", "", "the `file` to write")
	prompt := flags.String("prompt", "", "the command `line` to show; default: the command")
	p := picture{columns: 86, rows: 28}
	flags.StringVar(&p.title, "title", "A terminal", "the picture's name, for who does not see it")
	flags.StringVar(&p.description, "description", "", "what it shows, for the same")
	pace := pace{line: 250 * time.Millisecond, wait: 1500 * time.Millisecond, end: 5 * time.Second}
	flags.DurationVar(&pace.line, "line", pace.line, "the least `time` between two lines: what comes at once is to be read")
	flags.DurationVar(&pace.wait, "wait", pace.wait, "the longest, however long it took")
	flags.Parse(args) // exits on errors
	if *out == "" || flags.NArg() == 0 {
		return errors.New("want -o FILE and a command")
	}
	printed, err := record(ctx, p.columns, p.rows, flags.Args())
	if err != nil {
		return err
	}
	p.lines, err = parse(printed)
	if err != nil {
		return err
	}
	p.lines = pace.set(p.lines, prompted(*prompt, flags.Args()))
	p.hold = pace.end
	text, err := p.svg()
	if err != nil {
		return err
	}
	if err := os.WriteFile(*out, text, 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: %d lines in %.0f s, %d bytes\n", *out, len(p.lines), p.length().Seconds(), len(text))
	return nil
}
