package logging

import (
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// shortest is the least length of a secret to remove: a shorter one would match parts of ordinary words.
	shortest = 8
	// remembered is how many secrets are removed, the latest: a replaced one may still turn up for a while.
	remembered = 16
	// instead replaces a secret.
	instead = "(secret)"
)

// secrets removes known secrets from text. No code should ever log one; this limits the damage if some code does.
type secrets struct {
	mu       sync.Mutex
	known    []string
	replacer atomic.Pointer[strings.Replacer]
}

func (s *secrets) add(secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(secret) < shortest || slices.Contains(s.known, secret) {
		return
	}
	s.known = append(s.known, secret)
	s.known = s.known[max(0, len(s.known)-remembered):]
	var pairs []string
	for _, known := range s.known {
		for _, spelled := range spellings(known) {
			pairs = append(pairs, spelled, instead)
		}
	}
	s.replacer.Store(strings.NewReplacer(pairs...))
}

// spellings returns the forms in which a text may appear in a line: as it is, quoted by Go, JSON or the logger, or
// quoted by one of them inside another.
func spellings(text string) []string {
	out := []string{text}
	for range 2 {
		for _, s := range out {
			out = append(out, inside(strconv.Quote(s)), strings.ReplaceAll(s, `"`, `\"`))
			if encoded, err := json.Marshal(s); err == nil {
				out = append(out, inside(string(encoded)))
			}
		}
	}
	// so that the longest is tried first
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	return slices.Compact(out)
}

// inside returns the text between the quotes.
func inside(quoted string) string { return quoted[1 : len(quoted)-1] }

// redactor removes secrets from what is written.
type redactor struct {
	secrets *secrets
	to      io.Writer
}

func (r redactor) Write(line []byte) (int, error) {
	clean := line
	if replacer := r.secrets.replacer.Load(); replacer != nil {
		clean = []byte(replacer.Replace(string(line)))
	}
	if _, err := r.to.Write(clean); err != nil {
		return 0, err
	}
	return len(line), nil
}
