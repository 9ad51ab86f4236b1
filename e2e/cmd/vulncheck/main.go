// Vulncheck judges the output of govulncheck -format=json on standard input. It fails if the program contains a
// vulnerable function of a module, which an update in go.mod fixes. Vulnerable functions of Go's standard library are
// only reported: which Go is installed is no property of the source.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/lenonet/leno/e2e/program"
)

func main() { os.Exit(program.Main("vulncheck", run)) }

func run(context.Context, []string) error {
	modules, standard, err := read(os.Stdin)
	if err != nil {
		return err
	}
	for _, line := range standard {
		fmt.Fprintln(os.Stderr, "vulncheck: update Go:", line)
	}
	for _, line := range modules {
		fmt.Fprintln(os.Stderr, "vulncheck: update the module with go get:", line)
	}
	if len(modules) > 0 {
		return fmt.Errorf("%d known vulnerabilities in the program", len(modules))
	}
	return nil
}

// message is one of those that govulncheck prints; only these members count here.
type message struct {
	Config  *struct{} `json:"config"`
	Finding *finding  `json:"finding"`
}

type finding struct {
	OSV   string `json:"osv"`
	Fixed string `json:"fixed_version"` // "" if there is no fix
	Trace []struct {
		Module   string `json:"module"`
		Version  string `json:"version"`
		Function string `json:"function"` // "" if only the module or the package is affected
	} `json:"trace"`
}

// read returns a line for each vulnerability of a function in the program, sorted.
func read(from io.Reader) (modules, standard []string, err error) {
	inModules, inStandard, begun := map[string]bool{}, map[string]bool{}, false
	for in := json.NewDecoder(from); ; {
		var m message
		switch err := in.Decode(&m); {
		case errors.Is(err, io.EOF) && !begun:
			return nil, nil, errors.New("govulncheck printed nothing")
		case errors.Is(err, io.EOF):
			return slices.Sorted(maps.Keys(inModules)), slices.Sorted(maps.Keys(inStandard)), nil
		case err != nil:
			return nil, nil, fmt.Errorf("the output of govulncheck: %w", err)
		}
		begun = begun || m.Config != nil
		if m.Finding == nil || len(m.Finding.Trace) == 0 || m.Finding.Trace[0].Function == "" {
			continue
		}
		at := m.Finding.Trace[0]
		fixed := "fixed in " + m.Finding.Fixed
		if m.Finding.Fixed == "" {
			fixed = "not fixed"
		}
		line := fmt.Sprintf("%s in %s %s, %s", m.Finding.OSV, at.Module, at.Version, fixed)
		if at.Module == "stdlib" {
			inStandard[line] = true
		} else {
			inModules[line] = true
		}
	}
}
