package cli

import (
	"fmt"
	"slices"
)

// didYouMean returns "; did you mean X?" for the first name that differs from word by one typing mistake, or "". A name
// that differs by more, such as apply from history, may do what the user does not want.
func didYouMean(word string, names []string) string {
	i := slices.IndexFunc(names, func(name string) bool { return isTypo([]rune(word), []rune(name)) })
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", names[i])
}

// isTypo reports whether word is name with one mistake: a letter is missing, surplus or wrong, or two are swapped.
func isTypo(word, name []rune) bool {
	for len(word) > 0 && len(name) > 0 && word[0] == name[0] {
		word, name = word[1:], name[1:]
	}
	for len(word) > 0 && len(name) > 0 && word[len(word)-1] == name[len(name)-1] {
		word, name = word[:len(word)-1], name[:len(name)-1]
	}
	isSwapped := len(word) == 2 && len(name) == 2 && word[0] == name[1] && word[1] == name[0]
	return isSwapped || len(word) <= 1 && len(name) <= 1
}
