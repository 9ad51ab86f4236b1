package docpages

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Block is one fenced block of a page. The text after the fence gives its purpose:
//
//	```sh                          commands, each of which is run
//	```console                     commands after "$ ", and their output
//	```hcl, ```json                a configuration, or the content of a network block
//	```hcl title="FILE"            the same as a file, for the commands that follow
//	```… title="examples/FILE"     a copy of a file in the source tree
//	```… norun="why"               nothing that could be run
//	```… generated="make docs"     written by that command; e2e/cmd/reference compares it with the code
type Block struct {
	Page      string // relative to the top of the source tree
	Line      int    // of its first line of text
	Kind      string
	Title     string
	NoRun     string
	Generated string
	Text      string
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// First returns the block's first line, for lists.
func (b Block) First() string {
	line, _, _ := strings.Cut(b.Text, "\n")
	return strings.TrimSpace(line)
}

// Copies reports whether the block shows a file of the source tree.
func (b Block) Copies() bool {
	return strings.HasPrefix(b.Title, "examples/") || b.Title == "config.hcl.example"
}

// Pages returns the pages whose blocks are tested, in the order in which a newcomer reads them and
// in which their commands are run.
func Pages(t *testing.T) []string {
	t.Helper()
	first := []string{"README.md"}
	for _, name := range []string{"intro/index", "getting-started", "concepts/how-it-works", "configuration", "backends", "commands/index", "api/index",
		"api/health", "api/agent", "api/networks", "api/leases", "api/reservations", "api/peers",
		"operations/debug", "operations/telemetry", "integrations/docker",
		"operations/systemd", "operations/access-control", "operations/health", "operations/upgrade", "operations/leases",
		"operations/networks", "operations/drift", "operations/probe", "operations/remove"} {
		first = append(first, Path(name))
	}
	err := filepath.WalkDir(Root+Dir, func(path string, entry os.DirEntry, err error) error {
		if path = strings.TrimPrefix(path, Root); strings.HasSuffix(path, ".mdx") && !slices.Contains(first, path) {
			first = append(first, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return first
}

var attribute = regexp.MustCompile(`^(\w+)="([^"]*)"\s*`)

// Blocks returns the blocks of one page.
func Blocks(t *testing.T, path string) []Block {
	t.Helper()
	var out []Block
	var open *Block
	for i, line := range strings.Split(Source(t, path), "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case !fence && open != nil:
			open.Text += line + "\n"
		case !fence:
			if strings.Contains(line, "```") {
				t.Errorf("%s:%d: a fence that does not begin its line", path, i+1)
			}
		case open != nil:
			out, open = append(out, *open), nil
		default:
			open = &Block{Page: path, Line: i + 2}
			open.Kind, info, _ = strings.Cut(info, " ")
			for info = strings.TrimSpace(info); info != ""; {
				m := attribute.FindStringSubmatch(info)
				if m == nil {
					t.Errorf("%s:%d: %q behind the fence", path, i+1, info)
					break
				}
				info = info[len(m[0]):]
				switch m[1] {
				case "title":
					open.Title = m[2]
				case "norun":
					open.NoRun = m[2]
				case "generated":
					open.Generated = m[2]
				default:
					t.Errorf("%s:%d: attribute %s", path, i+1, m[1])
				}
			}
		}
	}
	if open != nil {
		t.Errorf("%s: the fence is never closed", open)
	}
	return out
}

// AllBlocks returns the blocks of all pages.
func AllBlocks(t *testing.T) []Block {
	t.Helper()
	var out []Block
	for _, p := range Pages(t) {
		out = append(out, Blocks(t, p)...)
	}
	return out
}

// Prose returns a page without its fenced blocks.
func Prose(text string) string {
	var out strings.Builder
	fenced := false
	for line := range strings.Lines(text) {
		fence := strings.HasPrefix(line, "```")
		if !fence && !fenced {
			out.WriteString(line)
		}
		fenced = fence != fenced
	}
	return out.String()
}
