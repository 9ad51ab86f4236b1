// Package site checks the documentation's site as it is published: every page and link, requests to
// other servers, and what people see.
package site

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/html"
)

// source is the directory of the pages' source files.
const source = "../../website/content/docs"

// folder returns the directory of the built site: LENO_TEST_SITE, or one built now.
var folder = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("LENO_TEST_SITE"); dir != "" {
		return dir, nil
	}
	var said bytes.Buffer
	cmd := exec.Command("../../tools/site")
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		_, _ = os.Stderr.Write(said.Bytes())
	}
	return strings.TrimSpace(string(out)), err
})

// A site is everything that is published.
type site struct {
	dir   string
	base  string // "/dev/"
	pages map[string]*page
	moved map[string]string // addresses of pages that moved, with their new ones
}

// A page is a page of the newest version.
type page struct {
	path string // address, "/dev/api/"
	root *html.Node
	file string // its source file, relative to source; "" for the 404 page
}

// open returns the site, which is read once for all tests. The tests must not change it.
func open(t *testing.T) *site {
	t.Helper()
	s, err := read()
	must(t, err)
	return s
}

var read = sync.OnceValues(func() (*site, error) {
	dir, err := folder()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "versions.json"))
	if err != nil {
		return nil, err
	}
	var versions []string
	if err := json.Unmarshal(text, &versions); err != nil {
		return nil, err
	}
	s := &site{dir: dir, base: "/" + versions[0] + "/", pages: map[string]*page{}, moved: map[string]string{}}
	err = filepath.WalkDir(dir+s.base, func(path string, entry os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".html" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		root, err := html.Parse(bytes.NewReader(text))
		if err != nil {
			return err
		}
		p := &page{path: strings.TrimSuffix(strings.TrimPrefix(path, dir), "index.html"), root: root}
		if to := redirect(root); to != "" {
			s.moved[p.path] = to
		} else {
			s.pages[p.path] = p
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	files, err := written()
	for _, file := range files {
		path := s.base + strings.TrimSuffix(strings.TrimSuffix(file, ".mdx")+"/", "index/")
		if s.pages[path] == nil {
			return nil, fmt.Errorf("%s has no page %s", file, path)
		}
		s.pages[path].file = file
	}
	return s, err
})

// written returns the source files of pages, relative to source.
func written() (out []string, err error) {
	err = filepath.WalkDir(source, func(path string, _ os.DirEntry, err error) error {
		if strings.HasSuffix(path, ".mdx") {
			out = append(out, strings.TrimPrefix(path, source+"/"))
		}
		return err
	})
	return out, err
}

// serve serves the site as an ordinary file server does, and returns its origin.
func (s *site) serve(t *testing.T) (origin string) {
	t.Helper()
	files := http.FileServer(http.Dir(s.dir))
	missing, err := os.ReadFile(filepath.Join(s.dir, "404.html"))
	must(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := os.Stat(filepath.Join(s.dir, filepath.FromSlash(r.URL.Path))); err != nil {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write(missing)
			return
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// elements returns n and the elements below it that have one of the names, or all of them if no
// name is given.
func elements(n *html.Node, names ...string) (out []*html.Node) {
	for d := range n.Descendants() {
		if d.Type != html.ElementNode {
			continue
		}
		for _, name := range names {
			if d.Data == name {
				out = append(out, d)
			}
		}
		if len(names) == 0 {
			out = append(out, d)
		}
	}
	return out
}

// redirect returns the address to which a page leads at once, or "".
func redirect(root *html.Node) string {
	for _, meta := range elements(root, "meta") {
		if _, to, found := strings.Cut(attribute(meta, "content"), "url="); found && attribute(meta, "http-equiv") == "refresh" {
			return to
		}
	}
	return ""
}

// attribute returns an attribute of an element, or "".
func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// class reports whether an element has a class.
func class(n *html.Node, name string) bool {
	return strings.Contains(" "+attribute(n, "class")+" ", " "+name+" ")
}

// first returns the first of the elements that has the class.
func first(nodes []*html.Node, name string) *html.Node {
	for _, n := range nodes {
		if class(n, name) {
			return n
		}
	}
	return nil
}

// text returns the text of an element without the parts for which leaveOut returns true.
func text(n *html.Node, leaveOut func(*html.Node) bool) string {
	if n.Type == html.TextNode {
		return n.Data
	}
	if leaveOut != nil && leaveOut(n) {
		return ""
	}
	var out strings.Builder
	for c := range n.ChildNodes() {
		out.WriteString(text(c, leaveOut))
	}
	return out.String()
}

// squeeze replaces each run of white space with one space.
func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// content returns the part of a page that comes from its source file.
func (p *page) content() *html.Node { return first(elements(p.root, "div"), "sl-markdown-content") }

var simpleValue = regexp.MustCompile(`(?m)^(\w+): (.*)$`)

// matter returns the front matter of a file: its simple values and its folded strings.
func matter(t *testing.T, file string) (values map[string]string, body string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(source, file))
	must(t, err)
	head, body, ok := strings.Cut(strings.TrimPrefix(string(text), "---\n"), "\n---\n")
	if !ok {
		t.Fatalf("%s: no front matter", file)
	}
	values = map[string]string{}
	for _, m := range simpleValue.FindAllStringSubmatch(head, -1) {
		values[m[1]] = strings.Trim(m[2], `"'`)
	}
	return values, body
}
