package ui

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
)

// asset is a file that the page uses.
type asset struct {
	kind    string
	content []byte
	version string // of the content
}

var kinds = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml"}

func (r *Renderer) load() error {
	entries, err := fs.ReadDir(assets, "assets")
	if err != nil {
		return err
	}
	for _, e := range entries {
		content, err := fs.ReadFile(assets, path.Join("assets", e.Name()))
		if err != nil {
			return err
		}
		kind, ok := kinds[path.Ext(e.Name())]
		if !ok {
			return fmt.Errorf("asset %s: no content type", e.Name())
		}
		r.files[e.Name()] = asset{kind, content, Version(content)}
	}
	return nil
}

// Asset returns one of the page's files: its content, content type and version; false when there is none of that
// name.
func (r *Renderer) Asset(name string) (content []byte, kind, version string, ok bool) {
	a, ok := r.files[name]
	return a.content, a.kind, a.version, ok
}

// address returns an asset's path below the page's root. It changes with the content.
func (r *Renderer) address(name string) (string, error) {
	a, ok := r.files[name]
	if !ok {
		return "", fmt.Errorf("no asset %s", name)
	}
	return "ui/assets/" + name + "?v=" + a.version, nil
}

// Version returns a string that differs for different contents.
func Version(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}
