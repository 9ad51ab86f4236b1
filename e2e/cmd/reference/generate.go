package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	pages      = "website/content/docs/"
	schemaFile = "website/public/schema/leno.schema.json"
)

// generated returns the content of every file of the source tree that is generated, by path. An error about sentences
// that people have to write comes with the content without them.
func (s *source) generated() (map[string]string, error) {
	out := map[string]string{}
	var err error
	if out[schemaFile], err = s.schema(); err != nil {
		return nil, err
	}
	if out[exampleFile], err = s.exampleConfig(); err != nil {
		return nil, err
	}
	if out[pages+"commands/json.mdx"], err = s.jsonPage(); err != nil {
		return nil, err
	}
	for folder, read := range map[string]func() (map[string]string, error){"commands/": s.commandPages, "api/": s.apiPages} {
		found, err := read()
		if err != nil {
			return nil, err
		}
		for path, text := range found {
			out[pages+folder+path] = text
		}
		if err := s.onlyKnown(pages+folder, out); err != nil {
			return nil, err
		}
	}
	var missing []error
	for _, t := range s.tables() {
		path := pages + t.page + ".mdx"
		if out[path] == "" {
			if out[path], err = s.file(path); err != nil {
				return nil, err
			}
		}
		if out[path], err = t.into(out[path]); err != nil {
			missing = append(missing, fmt.Errorf("%s: table %q: %w", path, t.name, err))
		}
	}
	return out, errors.Join(missing...)
}

// writeGenerated writes all generated files, even if people have to add sentences.
func (s *source) writeGenerated() error {
	files, missing := s.generated()
	for path, text := range files {
		path = filepath.Join(s.root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return missing
}

// onlyKnown returns an error if a folder of generated pages has a page of a command or of a part of the API that is no
// more, or no overview with links to all of them.
func (s *source) onlyKnown(folder string, generated map[string]string) error {
	overview, err := s.file(folder + "index.mdx")
	if err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(generated)) {
		below, ok := strings.CutPrefix(path, folder)
		if ok && folder == pages+"commands/" && !strings.HasSuffix(below, "/index.mdx") && !strings.Contains(overview, "]("+below+")") {
			return fmt.Errorf("%sindex.mdx has no link to %s", folder, below)
		}
	}
	return filepath.WalkDir(filepath.Join(s.root, folder), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		path, err = filepath.Rel(s.root, path)
		if _, known := generated[path]; !known && path != folder+"index.mdx" && err == nil {
			return fmt.Errorf("nothing generates %s: remove it", path)
		}
		return err
	})
}

// into returns a page with the table in its place.
func (t table) into(page string) (string, error) {
	begin, end := "{/* make docs: "+t.name+" */}\n\n", "\n{/* end */}\n"
	before, rest, ok := strings.Cut(page, begin)
	old, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return page, fmt.Errorf("the page lacks %q with %q after the table", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	if t.write != nil {
		text, err := t.write()
		return before + begin + text + end + after, err
	}
	head, found := readTable(old)
	kept, err := t.keep(found)
	if kept == nil {
		return page, err
	}
	return before + begin + head + kept.String() + end + after, err
}
