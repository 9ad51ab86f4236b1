package config

import (
	"reflect"
	"regexp"
	"strings"
)

// Value is one setting and its value, as written in a file.
type Value struct{ Name, Value string }

// Values returns the whole configuration, defaults filled in, for people: for a secret only whether there is one.
func Values(c Config) []Value {
	out := values(settings(reflect.TypeFor[Config](), Setting{}), "", reflect.ValueOf(c))
	ofNetwork := settings(reflect.TypeFor[Network](), Setting{Name: "network.*"})
	for _, n := range c.Networks {
		out = append(out, values(ofNetwork, n.Name, reflect.ValueOf(n))...)
	}
	return out
}

func values(all []Setting, network string, of reflect.Value) []Value {
	var out []Value
	for _, s := range all {
		v := Value{strings.Replace(s.Name, "*", network, 1), written(of.FieldByIndex(s.index).Interface())}
		if s.Secret {
			v.Value = hidden(v.Value)
		}
		v.Value = withoutSecrets(v.Value)
		out = append(out, v)
	}
	return out
}

// Possible secrets in settings that are not secret: the user of a URL, a parameter of one, a member of a backend's
// options.
var (
	urlUser      = regexp.MustCompile(`://[^/@\s"]*@`)
	urlParameter = regexp.MustCompile(`(?i)([?&;][^=&\s"]*(?:token|secret|password|key)[^=&\s"]*=)[^&\s"]+`)
	member       = regexp.MustCompile(`(?i)("[^"]*(?:token|secret|password|private|psk)[^"]*"\s*:\s*)"(?:[^"\\]|\\.)*"`)
	memberPath   = regexp.MustCompile(`^"\w+_file"\s*:\s*"/`) // the path of a file that contains a secret
)

func withoutSecrets(text string) string {
	text = urlUser.ReplaceAllString(text, "://(secret)@")
	text = urlParameter.ReplaceAllString(text, "${1}(secret)")
	return member.ReplaceAllStringFunc(text, func(found string) string {
		if memberPath.MatchString(found) {
			return found
		}
		return member.ReplaceAllString(found, `${1}"(secret)"`)
	})
}
