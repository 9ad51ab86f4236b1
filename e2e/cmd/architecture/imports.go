package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
)

// graph holds the packages of the module, by their path below its root, and what
// each imports of the others, sorted. For example "agent/health" imports "api".
// The root package is "main".
type graph map[string][]string

// readImports returns the imports of the product's packages in the module at root,
// on Linux. The tests' own packages ("e2e/lab", "internal/testkit/faulty") are left out.
func readImports(ctx context.Context, root string) (graph, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-json=ImportPath,Imports,Module", "./...")
	cmd.Dir = root
	cmd.Env = append(cmd.Environ(), "GOOS=linux")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	listed, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w: %s", root, err, strings.TrimSpace(complaints.String()))
	}
	type entry struct {
		ImportPath string
		Imports    []string
		Module     struct{ Path string }
	}
	var entries []entry
	for decoder := json.NewDecoder(bytes.NewReader(listed)); ; {
		var e entry
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("go list in %s: %w", root, err)
		}
		entries = append(entries, e)
	}
	out := graph{}
	for _, e := range entries {
		name := packageName(e.Module.Path, e.ImportPath)
		if !isProduct(name) {
			continue
		}
		out[name] = []string{}
		for _, imported := range e.Imports {
			if imported == e.Module.Path || strings.HasPrefix(imported, e.Module.Path+"/") {
				out[name] = append(out[name], packageName(e.Module.Path, imported))
			}
		}
		slices.Sort(out[name])
	}
	return out, nil
}

func packageName(module, path string) string {
	if path == module {
		return "main"
	}
	return strings.TrimPrefix(path, module+"/")
}

// isProduct reports whether a package is part of the program.
func isProduct(name string) bool {
	top, _, _ := strings.Cut(name, "/")
	return top != "e2e" && top != "tools" && top != "internal"
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
