package site

import (
	"maps"
	"math"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// TestPages compares the head of each page, and its place in the navigation, with its file.
func TestPages(t *testing.T) {
	t.Parallel()
	s := open(t)
	titles := map[string]string{}
	for _, p := range s.pages {
		headings := elements(p.root, "h1")
		if len(headings) != 1 {
			t.Errorf("%s has %d main headings", p.path, len(headings))
		}
		if attribute(elements(p.root, "html")[0], "lang") != "en" {
			t.Errorf("%s does not say that it is English", p.path)
		}
		title := text(elements(p.root, "title")[0], nil)
		if other, ok := titles[title]; ok {
			t.Errorf("%s and %s have the same title %q", p.path, other, title)
		}
		titles[title] = p.path
		if p.file == "" {
			if p.path != s.base+"404.html" {
				t.Errorf("%s comes out of no file", p.path)
			}
			continue
		}
		front, _ := matter(t, p.file)
		if front["title"] == "" || len(front["description"]) < 10 {
			t.Errorf("%s needs a title and a description: %q", p.file, front)
		}
		if got := squeeze(text(headings[0], nil)); got != front["title"] && p.path != s.base {
			t.Errorf("%s has the heading %q, its title is %q", p.path, got, front["title"])
		}
		described := false
		for _, meta := range elements(p.root, "meta") {
			described = described || attribute(meta, "name") == "description" && attribute(meta, "content") == front["description"]
		}
		if !described {
			t.Errorf("%s does not have its description", p.path)
		}
	}

	// The sidebar of every page but the first lists all of them, in the same order, and marks the
	// current one.
	var order []string
	for _, p := range s.pages {
		if p.file == "" || p.path == s.base {
			continue
		}
		sidebar := elements(p.root, "nav")[0]
		var paths []string
		current := ""
		for _, a := range elements(sidebar, "a") {
			if !strings.HasPrefix(attribute(a, "href"), s.base) {
				continue // on a phone the sidebar also has the link to the source
			}
			paths = append(paths, attribute(a, "href"))
			if attribute(a, "aria-current") == "page" {
				current += attribute(a, "href")
			}
		}
		if current != p.path {
			t.Errorf("the sidebar of %s says that this is %q", p.path, current)
		}
		if order == nil {
			order = paths
		}
		if !slices.Equal(order, paths) {
			t.Errorf("the sidebar of %s is another one", p.path)
		}
	}
	for _, p := range s.pages {
		if n := len(slices.DeleteFunc(slices.Clone(order), func(other string) bool { return other != p.path })); p.file != "" && p.path != s.base && n != 1 {
			t.Errorf("%s stands in the sidebar %d times", p.path, n)
		}
	}
	if len(order) < 20 {
		t.Errorf("only %d pages in the sidebar", len(order))
	}
	// A folder's own page comes before the other pages in it.
	for _, folder := range []string{"commands", "api", "intro/vs"} {
		index := slices.Index(order, s.base+folder+"/")
		if index < 0 || index > 0 && strings.HasPrefix(order[index-1], order[index]) {
			t.Errorf("the page of %s is not before the other pages in it: %q", folder, order)
		}
	}
	// Within a folder, pages that specify their position are in that order.
	for folder, pages := range inFolders(s, order) {
		last := math.MinInt
		for _, p := range pages[1:] { // after the folder's own page
			text, err := os.ReadFile(filepath.Join(source, s.pages[p].file))
			must(t, err)
			place := math.MaxInt
			if m := sidebarOrder.FindSubmatch(text); m != nil {
				place, err = strconv.Atoi(string(m[1]))
				must(t, err)
			}
			if place < last {
				t.Errorf("%s comes too late in the sidebar's %s: %q", p, folder, pages)
			}
			last = place
		}
	}
	// The group Start is expanded, and so is that of the page. Folders are not.
	var labels, expanded []string
	for _, d := range elements(elements(s.pages[s.base+"glossary/"].root, "nav")[0], "details") {
		label := squeeze(text(elements(d, "summary")[0], nil))
		labels = append(labels, label)
		if slices.ContainsFunc(d.Attr, func(a html.Attribute) bool { return a.Key == "open" }) {
			expanded = append(expanded, label)
		}
	}
	groups := []string{"Start", "Guides", "Troubleshooting", "Reference", "Concepts", "Project"}
	shown := slices.DeleteFunc(labels, func(label string) bool { return !slices.Contains(groups, label) })
	if !slices.Equal(shown, groups) || !slices.Equal(expanded, []string{"Start", "Reference"}) {
		t.Errorf("the sidebar has the groups %q, of which %q are open", shown, expanded)
	}
	// The links to the previous and the next page are those of the sidebar.
	for i, p := range order {
		want := map[string]string{}
		if i > 0 {
			want["prev"] = order[i-1]
		}
		if i < len(order)-1 {
			want["next"] = order[i+1]
		}
		got := map[string]string{}
		for _, a := range elements(s.pages[p].root, "a") {
			if rel := attribute(a, "rel"); rel == "prev" || rel == "next" {
				got[rel] = attribute(a, "href")
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s leads to %v, want %v", p, got, want)
		}
	}
}

// TestMoved checks that the addresses of pages that moved lead to pages.
func TestMoved(t *testing.T) {
	t.Parallel()
	s := open(t)
	for from, to := range s.moved {
		if s.pages[to] == nil {
			t.Errorf("%s leads to %s, which is no page", from, to)
		}
	}
	if s.moved[s.base+"faq/"] != s.base+"troubleshooting/" {
		t.Errorf("moved pages: %v", s.moved)
	}
}

var sidebarOrder = regexp.MustCompile(`(?m)^sidebar:\n(?:  .*\n)*?  order: (-?\d+)$`)

// inFolders returns the pages of each folder that the sidebar shows as a folder, in its order.
func inFolders(s *site, order []string) map[string][]string {
	out := map[string][]string{}
	for _, p := range order {
		folder := path.Dir(strings.TrimPrefix(s.pages[p].file, "website/content/docs/"))
		if folder == "commands" || folder == "api" || folder == "intro/vs" {
			out[folder] = append(out[folder], p)
		}
	}
	return out
}

// TestLinks follows every link within the site, to the file and to the part of the page, and checks
// that every page can be reached from the first one.
func TestLinks(t *testing.T) {
	t.Parallel()
	s := open(t)
	ids := map[string]map[string]int{}
	for path, p := range s.pages {
		ids[path] = map[string]int{}
		for _, e := range elements(p.root) {
			if id := attribute(e, "id"); id != "" {
				ids[path][id]++
			}
		}
		for id, n := range ids[path] {
			if n > 1 {
				t.Errorf("%s has %d parts with the id %s", path, n, id)
			}
		}
	}
	reached, queue := map[string]bool{s.base: true}, []string{s.base}
	reached[s.base+"404.html"] = true // served for every unknown address
	followed := 0
	for len(queue) > 0 {
		at := s.pages[queue[0]]
		queue = queue[1:]
		for _, a := range elements(at.root, "a", "area") {
			link, err := url.Parse(attribute(a, "href"))
			if err != nil {
				t.Errorf("%s: %v", at.path, err)
				continue
			}
			if link.Scheme != "" || link.Host != "" {
				if link.Scheme != "https" && link.Hostname() != "127.0.0.1" {
					t.Errorf("%s: a link to %s", at.path, link)
				}
				continue
			}
			followed++
			to := (&url.URL{Path: at.path}).ResolveReference(link)
			if _, err := os.Stat(s.dir + to.Path); err != nil {
				t.Errorf("%s: a link to %s, which is not there", at.path, link)
				continue
			}
			target := s.pages[to.Path]
			if target == nil {
				if to.Path != "/versions/" && path.Ext(to.Path) == "" {
					t.Errorf("%s: a link to %s, which is no page", at.path, link)
				}
				continue
			}
			if to.Fragment != "" && ids[to.Path][to.Fragment] == 0 {
				t.Errorf("%s: a link to %s, where no part is called so", at.path, link)
			}
			if !reached[to.Path] {
				reached[to.Path] = true
				queue = append(queue, to.Path)
			}
		}
	}
	for path := range s.pages {
		if !reached[path] {
			t.Errorf("no way leads to %s", path)
		}
	}
	if followed < 1000 {
		t.Errorf("only %d links", followed)
	}
}

// TestNothingFromElsewhere searches everything that is published for addresses of other servers
// that a browser would load by itself, and for files that do not exist.
func TestNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	s := open(t)
	local := func(from, address string) {
		u, err := url.Parse(address)
		if err != nil || u.Scheme == "data" {
			return
		}
		if u.Scheme != "" || u.Host != "" {
			t.Errorf("%s asks for %s", from, address)
		} else if to := (&url.URL{Path: from}).ResolveReference(u); to.Path != from {
			if _, err := os.Stat(s.dir + to.Path); err != nil {
				t.Errorf("%s asks for %s, which is not there", from, address)
			}
		}
	}
	// Attributes with an address that a browser loads, on any element.
	asking := []string{"src", "srcset", "poster", "data", "background", "ping", "manifest", "action", "formaction"}
	for path, p := range s.pages {
		for _, e := range elements(p.root) {
			for _, a := range e.Attr {
				switch {
				case slices.Contains(asking, a.Key), a.Key == "href" && e.Data != "a":
					local(path, a.Val)
				case a.Key == "style":
					styles(a.Val, func(address string) { local(path, address) })
				case a.Key == "http-equiv" && a.Val != "refresh":
					t.Errorf("%s has <meta http-equiv=%q>", path, a.Val)
				}
			}
			if e.Data == "style" {
				styles(text(e, nil), func(address string) { local(path, address) })
			}
			if e.Data == "script" && strings.Contains(text(e, nil), "://") {
				t.Errorf("%s has a script with an address in it", path)
			}
		}
	}
	read := 0
	must(t, filepath.WalkDir(s.dir, func(file string, _ os.DirEntry, err error) error {
		at := strings.TrimPrefix(file, s.dir)
		extension := filepath.Ext(file)
		if err != nil || extension != ".css" && extension != ".js" && extension != ".svg" {
			return err
		}
		content, err := os.ReadFile(file)
		if extension == ".css" {
			styles(string(content), func(address string) { local(at, address) })
		}
		read++
		for _, m := range elsewhere.FindAllString(code(string(content)), -1) {
			if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(m, name) }) {
				t.Errorf("%s has the address %s", at, m)
			}
		}
		return err
	}))
	if read < 8 {
		t.Errorf("only %d files of styles and scripts", read)
	}
}

// elsewhere matches the address of another server: "https://example.com/x", "//example.com/x".
var elsewhere = regexp.MustCompile("(?:https?:)?//[a-zA-Z0-9][a-zA-Z0-9-]*\\.[a-z][^\"'`) ]*")

// names are strings that look like addresses: identifiers of standards, and a prefix from which the
// search builds paths.
var names = []string{"http://www.w3.org/", "https://example.com${"}

// code returns a script without comments on lines of their own, or a style sheet without any
// comments. The translators' credits in the search are removed as well.
func code(s string) string {
	s = regexp.MustCompile(`<https://[^>]*>`).ReplaceAllString(s, "")
	s = regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(s, "")
	return regexp.MustCompile(`(?m)^\s*//.*$`).ReplaceAllString(s, "")
}

var requested = regexp.MustCompile(`url\(\s*(?:"([^"]*)"|'([^']*)'|([^)"'\s]*))\s*\)|@import\s+["']([^"']*)`)

// styles calls ask with every address that a style sheet makes the browser load.
func styles(css string, ask func(address string)) {
	for _, m := range requested.FindAllStringSubmatch(css, -1) {
		ask(m[1] + m[2] + m[3] + m[4])
	}
}

// TestRendering compares the tables and blocks of every page with its source file, and looks for
// unprocessed Markdown.
func TestRendering(t *testing.T) {
	t.Parallel()
	s := open(t)
	fence := regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$")
	title := regexp.MustCompile(`title="([^"]*)"`)
	cell := regexp.MustCompile(`(?:[^|\\]|\\.)+`)
	ruler := regexp.MustCompile(`^[|:\s-]*-[|:\s-]*$`)
	left := regexp.MustCompile("\\]\\(|\\*\\*|```|\\|--|norun=|generated=|&(?:lt|gt|amp|quot|#\\d+);|\\\\[|<>{}]")
	blocks, rows := 0, 0
	for _, p := range s.pages {
		if p.file == "" {
			continue
		}
		_, body := matter(t, p.file)

		// Every block has its text and its title, and nothing else from after the fence.
		var shown, titles []string
		for _, pre := range elements(p.content(), "pre") {
			var lines []string
			for _, div := range elements(pre, "div") {
				if class(div, "ec-line") {
					lines = append(lines, strings.TrimRight(text(div, nil), "\n"))
				}
			}
			shown = append(shown, strings.Join(lines, "\n"))
		}
		for _, caption := range elements(p.content(), "figcaption") {
			if title := first(elements(caption, "span"), "title"); title != nil && text(title, nil) != "" {
				titles = append(titles, text(title, nil))
			}
		}
		var copied, wantCopied []string
		for _, button := range elements(p.content(), "button") {
			if code := attribute(button, "data-code"); code != "" {
				copied = append(copied, strings.ReplaceAll(code, "\u007f", "\n"))
			}
		}
		var want, wantTitles []string
		for _, m := range fence.FindAllStringSubmatch(body, -1) {
			want = append(want, strings.TrimSuffix(m[2], "\n"))
			wantCopied = append(wantCopied, toCopy(m[1], want[len(want)-1]))
			if t := title.FindStringSubmatch(m[1]); t != nil {
				wantTitles = append(wantTitles, t[1])
			}
		}
		blocks += len(want)
		if !slices.Equal(shown, want) {
			t.Errorf("%s shows the blocks\n%q\nwant\n%q", p.path, shown, want)
		}
		if !slices.Equal(titles, wantTitles) {
			t.Errorf("%s shows the titles %q of blocks, want %q", p.path, titles, wantTitles)
		}
		if !slices.Equal(copied, wantCopied) {
			t.Errorf("of %s is copied\n%q\nwant\n%q", p.path, copied, wantCopied)
		}

		// Every row of every table has all its cells.
		var cells, wantCells []int
		for _, row := range elements(p.content(), "tr") {
			cells = append(cells, len(elements(row, "td", "th")))
		}
		for line := range strings.Lines(fence.ReplaceAllString(body, "")) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "|") && !ruler.MatchString(line) {
				wantCells = append(wantCells, len(cell.FindAllString(strings.Trim(line, "|"), -1)))
			}
		}
		rows += len(wantCells)
		if !slices.Equal(cells, wantCells) {
			t.Errorf("%s has rows of %v cells, want %v", p.path, cells, wantCells)
		}

		prose := text(p.content(), func(n *html.Node) bool {
			return n.Data == "code" || n.Data == "pre" || n.Data == "style" || n.Data == "script"
		})
		if m := left.FindStringIndex(prose); m != nil {
			t.Errorf("%s shows %q", p.path, prose[max(0, m[0]-40):min(len(prose), m[1]+40)])
		}
	}
	if blocks < 50 || rows < 300 {
		t.Errorf("only %d blocks and %d rows", blocks, rows)
	}
}

// toCopy returns what the copy button of a block copies: for a console, the commands without
// prompts and output.
func toCopy(info, text string) string {
	if !strings.HasPrefix(info, "console") || !strings.Contains("\n"+text, "\n$ ") {
		return text
	}
	var out []string
	more := false
	for _, line := range strings.Split(text, "\n") {
		command, prompt := strings.CutPrefix(line, "$ ")
		if prompt || more {
			out = append(out, command)
			more = strings.HasSuffix(line, "\\")
		}
	}
	return strings.Join(out, "\n")
}
