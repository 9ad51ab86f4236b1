package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
)

// didYouMean returns "; did you mean X?" for the most similar name, or "" if none is similar.
func didYouMean(word string, names []string) string {
	if near := nearestName(word, names); near != "" {
		return fmt.Sprintf("; did you mean %s?", Escape(near))
	}
	return ""
}

// nearestName returns the name most similar to word: at most two typing mistakes away, or the only one
// that word is a prefix of. It returns "" for none.
func nearestName(word string, names []string) string {
	best, near := 3, ""
	var begun []string
	for _, n := range names {
		if d := levenshtein.Distance(word, n, nil); d < best && d < len(n) {
			best, near = d, n
		}
		if len(word) > 1 && strings.HasPrefix(n, word) {
			begun = append(begun, n)
		}
	}
	if len(begun) == 1 {
		return begun[0]
	}
	return near
}

func exactOrNearestName(word string, names []string) string {
	if slices.Contains(names, word) {
		return word
	}
	return nearestName(word, names)
}
