// Package site looks at the documentation's site as it is published: every page and link, what
// it asks of others, and what people see of it.
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

// source is where the pages are written.
const source = "../../website/content/docs"

// folder is where the site is: LENO_TEST_SITE, or built now.
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

// site is what is published.
type site struct {
	dir   string
	base  string // "/dev/"
	pages map[string]*page
}

// page is one of the newest version's.
type page struct {
	path string // address, "/dev/api/"
	root *html.Node
	file string // that it was written in, below source; "" for the 404 page
}

// open returns the site, which is read once for all tests. They do not change it.
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
	s := &site{dir: dir, base: "/" + versions[0] + "/", pages: map[string]*page{}}
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
		s.pages[p.path] = p
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

// written are the files of pages, below source.
func written() (out []string, err error) {
	err = filepath.WalkDir(source, func(path string, _ os.DirEntry, err error) error {
		if strings.HasSuffix(path, ".mdx") {
			out = append(out, strings.TrimPrefix(path, source+"/"))
		}
		return err
	})
	return out, err
}

// serve is the site on a server of its own, as any server of files does it.
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

// elements are those below n, and n, with one of the names; all without.
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

// attribute of an element, "" without.
func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// class says whether an element has a class.
func class(n *html.Node, name string) bool {
	return strings.Contains(" "+attribute(n, "class")+" ", " "+name+" ")
}

// first is the first of the elements that has the class.
func first(nodes []*html.Node, name string) *html.Node {
	for _, n := range nodes {
		if class(n, name) {
			return n
		}
	}
	return nil
}

// text of an element, without the parts that leave out says.
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

// squeeze makes one space of all white space.
func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// content is the part of a page that was written in its file.
func (p *page) content() *html.Node { return first(elements(p.root, "div"), "sl-markdown-content") }

var simpleValue = regexp.MustCompile(`(?m)^(\w+): (.*)$`)

// matter is the front matter of a file: its simple values, and those of folded text.
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
