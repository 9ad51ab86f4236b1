package config

import (
	"bytes"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// Errors show source lines, and a token may be in any of them: under a misspelt name, without quotes, in another
// option's place. So from the consul block only text is shown that is plainly no token.

var (
	// secretText matches a token by its name, quoted or not, and a password in an address.
	secretText = regexp.MustCompile(`(?mi)(?:(?:token|secret|password)\w*"?[ \t]*[=:][ \t]*)([^\r\n#]+)|["/]([^/@\s"]*:[^/@\s"]*)@`)
	// uuid matches the form of Consul's tokens.
	uuid = regexp.MustCompile(`(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	// consulBegins and consulEnds match the lines around a possible consul block of a file that cannot be parsed.
	consulBegins = regexp.MustCompile(`^[ \t{]*"?consul\b`)
	consulEnds   = regexp.MustCompile(`^[ \t]*"?(?:node_name|data_dir|log_\w+|lease|underlay|firewall|http|telemetry|network|watch_networks|allowed_networks|enable_debug)\b`)
	// harmless matches a line of that block that sets an option which is no secret.
	harmless = regexp.MustCompile(`^[ \t]*"?(?:address|kv_prefix|service|datacenter|namespace|partition|token_file|ca_file|cert_file|key_file|server_name)"?[ \t]*[=:]`)
	// word matches a string or unquoted text.
	word = regexp.MustCompile(`"[^"\r\n]*|[^\s"{}=:,\[\]()]+`)
	// keyword matches HCL's message about unquoted JSON, with the unquoted text.
	keyword = regexp.MustCompile(`"[^"]*" is not a valid JSON keyword`)
)

// shownWords are the words of a consul block that are not values.
var shownWords = []string{"consul", "tls", "address", "token", "token_file", "kv_prefix", "service", "datacenter", "namespace", "partition",
	"ca_file", "cert_file", "key_file", "server_name", "#", "//"}

// masked returns the source with stars in place of possible secrets. Every byte keeps its position.
func masked(src []byte) []byte {
	out := slices.Clone(src)
	for _, m := range secretText.FindAllSubmatchIndex(src, -1) {
		for group := 2; group < len(m); group += 2 {
			star(out, m[group], m[group+1])
		}
	}
	for _, m := range uuid.FindAllIndex(src, -1) {
		star(out, m[0], m[1])
	}
	within, at := false, 0
	for line := range bytes.Lines(src) {
		switch {
		case consulBegins.Match(line):
			within = true
		case consulEnds.Match(line):
			within = false
		}
		if within && !harmless.Match(line) {
			for _, m := range word.FindAllIndex(line, -1) {
				if text := strings.Trim(string(line[m[0]:m[1]]), `"`); !slices.Contains(shownWords, text) {
					star(out, at+m[0], at+m[1])
				}
			}
		}
		at += len(line)
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
			*text = uuid.ReplaceAllString(*text, "(a secret)")
			*text = keyword.ReplaceAllString(*text, "this is not a valid JSON keyword")
		}
		out[i] = &copied
	}
	return out
}
