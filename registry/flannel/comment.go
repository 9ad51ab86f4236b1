package flannel

import (
	"bytes"
	"fmt"
)

// CommentError reports a comment in JSON, which has none. People write them into net-conf.json all the same.
type CommentError struct {
	Line int    // from 1
	Text string // the beginning of the comment
}

func (e *CommentError) Error() string {
	return fmt.Sprintf("line %d has a comment, %q, and JSON has no comments: remove it", e.Line, e.Text)
}

// FindComment returns an error about the first comment in JSON that begins with //, /* or #, nil if there is none.
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
			return &CommentError{1 + bytes.Count(text[:i], []byte("\n")), string(bytes.TrimSpace(line[:min(len(line), 40)]))}
		}
	}
	return nil
}
