package main

import (
	"errors"
	"fmt"
	"go/build"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// graph holds the packages of the module, by their path below its root, and what
// each imports of the others, sorted. For example "agent/health" imports "api".
// The root package is "main".
type graph map[string][]string

const module = "github.com/lenonet/leno"

// product lists the directories with the packages of the program, besides main.go.
var product = [...]string{"agent", "api", "backend", "command", "internal/plural", "internal/strictjson", "registry"}

// readImports returns the imports of the product's packages in the module at root, on Linux. It reads the files itself,
// because Go caches the result of a test by the files that the test's own process reads.
func readImports(root string) (graph, error) {
	out := graph{}
	main, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "main.go"), nil, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var imports []string
	for _, i := range main.Imports {
		imports = append(imports, strings.Trim(i.Path.Value, `"`))
	}
	out["main"] = own(imports)
	linux := build.Default
	linux.GOOS, linux.CgoEnabled = "linux", false
	for _, top := range product {
		err := filepath.WalkDir(filepath.Join(root, top), func(dir string, entry os.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return err
			}
			if entry.Name() == "testdata" {
				return filepath.SkipDir
			}
			p, err := linux.ImportDir(dir, 0)
			if no := (*build.NoGoError)(nil); errors.As(err, &no) {
				return nil // a folder of packages
			}
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, dir)
			out[filepath.ToSlash(name)] = own(p.Imports)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// own returns the module's packages among imports, by their path below the root, sorted.
func own(imports []string) []string {
	out := []string{}
	for _, path := range imports {
		if name, ok := strings.CutPrefix(path, module+"/"); ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// floors returns the packages of each floor, sorted, the ground first: a package
// stands one floor above the highest package that it imports.
func (g graph) floors() ([][]string, error) {
	floor := map[string]int{}
	var find func(name string, above []string) (int, error)
	find = func(name string, above []string) (int, error) {
		if slices.Contains(above, name) {
			return 0, fmt.Errorf("packages import each other: %s", strings.Join(append(above, name), " -> "))
		}
		if found, ok := floor[name]; ok {
			return found, nil
		}
		imports, ok := g[name]
		if !ok {
			return 0, fmt.Errorf("package %s is imported by %s and not part of the picture", name, above[len(above)-1])
		}
		height := 0
		for _, imported := range imports {
			below, err := find(imported, append(above, name))
			if err != nil {
				return 0, err
			}
			height = max(height, below+1)
		}
		floor[name] = height
		return height, nil
	}
	var out [][]string
	for _, name := range slices.Sorted(maps.Keys(g)) {
		height, err := find(name, nil)
		if err != nil {
			return nil, err
		}
		for len(out) <= height {
			out = append(out, nil)
		}
		out[height] = append(out[height], name)
	}
	return out, nil
}

// direct returns the imports without those that another import of the same package
// reaches as well, which keeps the picture legible.
func (g graph) direct() graph {
	reached := map[string]map[string]bool{}
	var reach func(name string) map[string]bool
	reach = func(name string) map[string]bool {
		if found, ok := reached[name]; ok {
			return found
		}
		out := map[string]bool{}
		for _, imported := range g[name] {
			out[imported] = true
			maps.Copy(out, reach(imported))
		}
		reached[name] = out
		return out
	}
	out := graph{}
	for name, imports := range g {
		out[name] = slices.DeleteFunc(slices.Clone(imports), func(imported string) bool {
			return slices.ContainsFunc(imports, func(other string) bool { return reach(other)[imported] })
		})
	}
	return out
}
