// Command matrix prints the table of tested versions from the results of tests, or writes it into a page. Each argument
// is one pair of versions and the file with the results, as `go test -json` prints them:
//
//	matrix 1.20.6:1.10.5:bin/matrix-consul-nomad.json
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	page := flag.String("o", "", "page whose table in the section \"Results\" is replaced; print the table without one")
	flag.Parse()
	if err := run(*page, flag.Args(), time.Now()); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

func run(page string, args []string, now time.Time) error {
	if len(args) == 0 {
		return errors.New("at least one result is needed")
	}
	var all []pair
	for _, arg := range args {
		p, err := readPair(arg)
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	if page == "" {
		_, err := fmt.Print(table(all, now))
		return err
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	out, err := replaceResults(string(text), table(all, now))
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(page, []byte(out), 0o644)
}
