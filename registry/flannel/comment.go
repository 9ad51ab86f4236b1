package flannel

import (
	"bytes"
	"fmt"
)

// FindComment returns an error about the first comment in JSON that begins with //, /* or #, nil if there is none.
// People write them into net-conf.json, although JSON has none.
func FindComment(text []byte) error {
	inString := false
	for i := 0; i < len(text); i++ {
		rest := text[i:]
		switch {
		case inString && rest[0] == '\\':
			i++
		case rest[0] == '"':
			inString = !inString
		case inString:
		case rest[0] == '#', bytes.HasPrefix(rest, []byte("//")), bytes.HasPrefix(rest, []byte("/*")):
			line, _, _ := bytes.Cut(rest, []byte("\n"))
			return fmt.Errorf("line %d has a comment, %q, and JSON has no comments: remove it",
				1+bytes.Count(text[:i], []byte("\n")), bytes.TrimSpace(line[:min(len(line), 40)]))
		}
	}
	return nil
}
