package config

import (
	"bytes"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// Errors show source lines, and a token may be in any of them: under a misspelt name, without quotes, in another
// option's place. So from the blocks of the stores only text is shown that is plainly no token.

const (
	// secretNames is a pattern of what names of secrets contain.
	secretNames = `token|secret|passw|private|psk`

	stores = StoreConsul + "|" + StoreEtcd + "|" + StoreKubernetes

	// beforeUser and user are patterns of what precedes the user in an address, and of the user, with or without a
	// password.
	beforeUser = `(?:"|//)(?:\w+://)?`
	user       = `(?:[^"\\\r\n]|\\.)*`
)

var (
	// secretText matches the value of an option with the name of a secret, quoted or not, to the end of the line, and the
	// user in an address.
	secretText = regexp.MustCompile(`(?mi)(?:(?:` + secretNames + `)\w*"?[ \t]*[=:][ \t]*)([^\r\n]+)` +
		`|` + beforeUser + `(` + user + `)@`)
	// pathText matches the path in an option such as token_file, which is no secret.
	pathText = regexp.MustCompile(`\w_file"?[ \t]*[=:][ \t]*"(\.{0,2}/[^"\r\n]*)"`)
	// uuid matches the form of Consul's tokens.
	uuid = regexp.MustCompile(`(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	// storeBegins and storeEnds match the lines around a possible block of a store of a file that cannot be parsed.
	// The option network of an etcd block does not end it.
	storeBegins = regexp.MustCompile(`^[ \t{]*"?(?:` + stores + `)\b|"(?:` + stores + `)"[ \t]*[:=]|\b(?:` + stores +
		`)[ \t]*[={]`)
	storeEnds = regexp.MustCompile(`^[ \t]*(?:"?(?:` + namesOf(func(s Setting) bool {
		return !isOfStore(s) && !strings.Contains(s.Name, ".")
	}) + `)\b|network[ \t]+"?\w|"network"[ \t]*:[ \t]*[\[{])`)
	// storeLabel matches how a rendered error names a store's block with labels, which it must not have.
	storeLabel = regexp.MustCompile(`(?m)(, in (?:` + stores + `) )".*"`)
	// harmless matches a line of that block that sets one option, which is no secret, and nothing else. The keys of a map
	// may be secrets.
	harmless = regexp.MustCompile(`^[ \t]*"?(?:` + namesOf(func(s Setting) bool {
		return isOfStore(s) && !s.IsBlock() && !s.Secret && s.Kind != kindMap
	}) + `)"?[ \t]*[=:][ \t]*(?:"[^"\r\n]*"?|\[[^]={}\r\n]*\]?|[^\s"=:,#]*)[ \t,}]*(?:#.*|//.*)?\r?\n?$`)
	// word matches a string or unquoted text.
	word = regexp.MustCompile(`"[^"\r\n]*|[^\s"{}=:,\[\]()]+`)
	// keyword matches HCL's messages about unquoted JSON and about a %{ in a string, with the text.
	keyword = regexp.MustCompile(`"[^"]*" is not a valid (JSON|template control) keyword`)
)

// storeWords matches the words of a store's block that are not values.
var storeWords = regexp.MustCompile(`^(?:` + namesOf(isOfStore) + `|#|//)$`)

// isOfStore reports whether the setting is the block of a store, or in one.
func isOfStore(s Setting) bool {
	block, _, _ := strings.Cut(s.Name, ".")
	return slices.Contains([]string{StoreConsul, StoreEtcd, StoreKubernetes}, block)
}

// namesOf returns a pattern that matches the own names of the selected settings.
func namesOf(selects func(Setting) bool) string {
	var names []string
	for _, s := range new(Config).settings(nil) {
		if selects(s) {
			names = append(names, s.Name[strings.LastIndexByte(s.Name, '.')+1:])
		}
	}
	return strings.Join(names, "|")
}

// masked returns the source with stars in place of possible secrets. Every byte keeps its position.
func masked(src []byte) []byte {
	out := slices.Clone(src)
	for _, m := range secretText.FindAllSubmatchIndex(src, -1) {
		for group := 2; group < len(m); group += 2 {
			star(out, m[group], m[group+1])
		}
	}
	within, at := false, 0
	for line := range bytes.Lines(src) {
		switch {
		case storeBegins.Match(line):
			within = true
		case storeEnds.Match(line):
			within = false
		}
		if within && !harmless.Match(line) {
			for _, m := range word.FindAllIndex(line, -1) {
				if text := strings.Trim(string(line[m[0]:m[1]]), `"`); !storeWords.MatchString(text) {
					star(out, at+m[0], at+m[1])
				}
			}
		}
		at += len(line)
	}
	for _, m := range pathText.FindAllSubmatchIndex(src, -1) {
		copy(out[m[2]:m[3]], src[m[2]:m[3]])
	}
	for _, m := range uuid.FindAllIndex(src, -1) {
		star(out, m[0], m[1])
	}
	return out
}

// star overwrites everything but punctuation with stars.
func star(out []byte, from, to int) {
	for i := max(from, 0); i < to; i++ {
		if !strings.ContainsRune("\"', \t{}\r\n", rune(out[i])) {
			out[i] = '*'
		}
	}
}

// quiet returns the diagnostics without possible secrets in their texts.
func quiet(diags hcl.Diagnostics) hcl.Diagnostics {
	out := make(hcl.Diagnostics, len(diags))
	for i, d := range diags {
		copied := *d
		for _, text := range []*string{&copied.Summary, &copied.Detail} {
			*text = uuid.ReplaceAllString(withoutSecrets(*text), "(a secret)")
			*text = keyword.ReplaceAllString(*text, "this is not a valid ${1} keyword")
		}
		out[i] = &copied
	}
	return out
}

// Possible secrets in settings that are not secret: the user of an address, a parameter of a URL, a member of a
// backend's options.
var (
	addressUser  = regexp.MustCompile(`(` + beforeUser + `)` + user + `@`)
	urlParameter = regexp.MustCompile(`(?i)([?&;][^=&\s"]*(?:key|` + secretNames + `)[^=&\s"]*=)[^&\s"]+`)
	member       = regexp.MustCompile(`(?i)("[^"]*(?:` + secretNames + `)[^"]*"\s*:\s*)"(?:[^"\\]|\\.)*"`)
	memberPath   = regexp.MustCompile(`^"\w+_file"\s*:\s*"/`) // the path of a file that contains a secret
)

// withoutSecrets replaces these in a text for people.
func withoutSecrets(text string) string {
	text = addressUser.ReplaceAllString(text, "${1}(secret)@")
	text = urlParameter.ReplaceAllString(text, "${1}(secret)")
	return member.ReplaceAllStringFunc(text, func(found string) string {
		if memberPath.MatchString(found) {
			return found
		}
		return member.ReplaceAllString(found, `${1}"(secret)"`)
	})
}
