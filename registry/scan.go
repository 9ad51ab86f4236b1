package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// All functions here read JSON that is known to be valid because encoding/json has already read it. The token reader of
// encoding/json costs more than the rest of reading a record.

// parts calls f with each member of an object, or with each element of an array, for which name is "". It does nothing
// for other values.
func parts(data []byte, f func(name string, value []byte) error) error {
	data = bytes.TrimLeft(data, jsonSpace)
	if len(data) == 0 || data[0] != '{' && data[0] != '[' {
		return nil
	}
	object := data[0] == '{'
	for {
		// Skip the opening bracket or the comma.
		data = bytes.TrimLeft(data[1:], jsonSpace)
		if len(data) == 0 || data[0] == '}' || data[0] == ']' {
			return nil
		}
		name := ""
		if object {
			end := valueEnd(data)
			var err error
			if name, err = unquote(data[:end]); err != nil {
				return err
			}
			data = bytes.TrimLeft(data[end:], jsonSpace+":")
		}
		end := valueEnd(data)
		if err := f(name, data[:end]); err != nil {
			return err
		}
		data = bytes.TrimLeft(data[end:], jsonSpace)
		if len(data) == 0 || data[0] != ',' {
			return nil
		}
	}
}

const jsonSpace = " \t\r\n"

// valueEnd returns the end of the value that data begins with.
func valueEnd(data []byte) int {
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return min(i+1, len(data))
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth < 0 {
				return i
			}
			if depth == 0 {
				return i + 1
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
		}
	}
	return len(data)
}

func unquote(quoted []byte) (s string, err error) {
	if bytes.IndexByte(quoted, '\\') < 0 && len(quoted) >= 2 {
		return string(quoted[1 : len(quoted)-1]), nil
	}
	err = json.Unmarshal(quoted, &s)
	return s, err
}

// CheckStructure limits the nesting of valid JSON, and refuses members that are there twice: see checkStructure.
func CheckStructure(value []byte) error {
	return checkStructure(bytes.TrimLeft(value, jsonSpace), maxDepth)
}

// checkStructure limits the nesting of one value. It refuses members of one object whose names are equal or differ only
// in case: readers differ in which of them counts (encoding/json takes the last, whatever its case), and all readers
// must see the same record.
func checkStructure(data []byte, depth int) error {
	if c := data[0]; c != '{' && c != '[' {
		return nil
	}
	if depth == 0 {
		return fmt.Errorf("nested deeper than %d", maxDepth)
	}
	seen := map[string]bool{}
	return parts(data, func(name string, value []byte) error {
		if data[0] == '{' {
			folded := strings.Map(fold, name)
			if seen[folded] {
				return fmt.Errorf("member %q is there twice", name)
			}
			seen[folded] = true
		}
		return checkStructure(value, depth-1)
	})
}

// fold returns the smallest of the characters that equal r except for case.
func fold(r rune) rune {
	for {
		next := unicode.SimpleFold(r)
		if next <= r {
			return next
		}
		r = next
	}
}
