package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode"
	"unicode/utf8"

	sockaddr "github.com/hashicorp/go-sockaddr/template"
)

// Checks of a single value. Their errors are sentences about the value.

// optional accepts "" as "not set".
func optional(check func(string) error) func(string) error {
	return func(s string) error {
		if s == "" {
			return nil
		}
		return check(s)
	}
}

func oneOf(allowed ...string) func(string) error {
	return func(s string) error {
		if slices.Contains(allowed, s) {
			return nil
		}
		return fmt.Errorf("%q is not one of %s", s, quoted(allowed))
	}
}

// matches returns a check that accepts at most max bytes that match a pattern as a whole. The format of its error has
// the value.
func matches(max int, pattern, format string) func(string) error {
	expression := regexp.MustCompile(`^(?:` + pattern + `)$`)
	return func(s string) error {
		if len(s) > max || !expression.MatchString(s) {
			return fmt.Errorf(format, s)
		}
		return nil
	}
}

// isSpaceOrHidden reports whether a character is white space or cannot be printed.
func isSpaceOrHidden(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }

// checkResync accepts an interval that can find something: more often than once a second costs more than it finds, and
// less often than once an hour is useless.
func checkResync(d time.Duration) error {
	if d < time.Second || d > time.Hour {
		return fmt.Errorf("%s is outside 1s to 1h", FormatDuration(d))
	}
	return nil
}

func quoted(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = strconv.Quote(s)
	}
	return strings.Join(out, ", ")
}

func checkAbsolute(s string) error {
	if !filepath.IsAbs(s) {
		return fmt.Errorf("%q is not an absolute path", s)
	}
	return nil
}

// CheckNodeName returns why s cannot be a host's node_name, or nil. Names must fit into one line of a log and of a
// table.
func CheckNodeName(s string) error {
	if len(s) > 255 || strings.ContainsFunc(s, isSpaceOrHidden) {
		return fmt.Errorf("%q is not a node name: at most 255 bytes without white space", s)
	}
	return nil
}

func checkPattern(s string) error {
	if s == "" {
		return fmt.Errorf("an empty pattern matches nothing")
	}
	if _, err := path.Match(s, ""); err != nil {
		return fmt.Errorf("%q is not a pattern: '*', '?' and [ranges] may stand in it, and every '[' needs its ']'", s)
	}
	return nil
}

// checkInterface accepts names that the kernel accepts (dev_valid_name: shorter than IFNAMSIZ, no slash, colon or
// white space, neither "." nor ".."), and addresses.
func checkInterface(s string) error {
	if _, err := netip.ParseAddr(s); err == nil {
		return nil
	}
	if s == "" || len(s) > 15 || s == "." || s == ".." || strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || r == ':' || unicode.IsSpace(r)
	}) {
		return fmt.Errorf("%q is neither an interface's name (at most 15 bytes) nor an IP address", s)
	}
	return nil
}

func checkRegex(s string) error {
	if s == "" {
		return fmt.Errorf("an empty expression matches every interface")
	}
	if _, err := regexp.Compile(s); err != nil {
		return fmt.Errorf("%q is not a regular expression: %s", s, strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	return nil
}

// checkPublicIP accepts an address of the family that other hosts can send to, or a go-sockaddr template. It checks
// only the syntax of a template: its value may change with every start.
func checkPublicIP(v6 bool) func(string) error {
	family := map[bool]string{false: "IPv4", true: "IPv6"}[v6]
	return optional(func(s string) error {
		if strings.Contains(s, "{{") {
			t := template.New("").Funcs(sockaddr.SourceFuncs).Funcs(sockaddr.SortFuncs).
				Funcs(sockaddr.FilterFuncs).Funcs(sockaddr.HelperFuncs)
			if _, err := t.Parse(s); err != nil {
				return fmt.Errorf("not a go-sockaddr template: %s", strings.TrimPrefix(err.Error(), "template: "))
			}
			return nil
		}
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil || a.Zone() != "":
			return fmt.Errorf("%q is neither an %s address nor a go-sockaddr template", s, family)
		case a.Is4() == v6 || a.Is4In6():
			return fmt.Errorf("%s is not an %s address", a, family)
		case !a.IsGlobalUnicast():
			return fmt.Errorf("%s is not an address that other hosts can send to", a)
		}
		return nil
	})
}

func checkHostPort(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q is not host:port", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %q of %q is not a number from 1 to 65535", port, s)
	}
	if strings.ContainsFunc(host, func(r rune) bool { return r == '/' || unicode.IsSpace(r) }) {
		return fmt.Errorf("%q is not a host", host)
	}
	return nil
}

// maxSocketPath is the longest path of a socket: 108 bytes with a zero at the end
// (unix(7)).
const maxSocketPath = 107

// checkSocket accepts a path that a socket can have.
func checkSocket(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("the path of the socket has %d bytes, and the kernel takes %d", len(path), maxSocketPath)
	}
	return checkAbsolute(path)
}

func checkListenAddress(s string) error {
	if socket, ok := strings.CutPrefix(s, "unix://"); ok {
		if !filepath.IsAbs(socket) {
			return fmt.Errorf("%q wants an absolute path after unix://", s)
		}
		return checkSocket(socket)
	}
	if err := checkHostPort(s); err != nil {
		return fmt.Errorf("%w; write host:port, such as \"127.0.0.1:5366\", or unix:///path", err)
	}
	return nil
}

// checkHostPattern accepts a name as it appears in a URL, or "*." and a name for all names below that. A pattern for
// all names would let in what the list must keep out.
func checkHostPattern(s string) error {
	if s == "*" {
		return fmt.Errorf("%q would be every name: list the names under which this host is asked", s)
	}
	return checkHostName(s)
}

var checkHostName = matches(253, `(\*\.)?[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*`,
	`%q is not a host name, such as "leno.example.com", nor "*." and one; it has no port`)

// checkConsulAddress accepts the forms that consul/api accepts in CONSUL_HTTP_ADDR.
func checkConsulAddress(s string) error {
	if shown := withoutPassword(s); shown != s {
		return fmt.Errorf("%q: a user and password have no place in the address, set CONSUL_HTTP_AUTH in the agent's "+
			"environment", shown)
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		scheme, rest = "", s
	}
	switch scheme {
	case "":
		if _, _, err := net.SplitHostPort(s); err != nil {
			return fmt.Errorf("%q is not host:port, http(s)://host:port or unix:///path", s)
		}
		return checkHostPort(s)
	case "unix":
		return checkListenAddress(s)
	case "http", "https":
		u, err := url.Parse(s)
		if err != nil || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
			return fmt.Errorf("%q is not %s://host:port", s, scheme)
		}
		if u.Port() == "" && !strings.HasSuffix(rest, ":") {
			return nil
		}
		return checkHostPort(u.Host)
	}
	return fmt.Errorf("%q begins with neither http://, https:// nor unix://", s)
}

// jwt matches a signed JWT: three parts in base64, of which the first begins with {".
var jwt = regexp.MustCompile(`^eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*$`)

// checkBearerTokenFile refuses a JWT, which must not appear in the configuration or in an error.
func checkBearerTokenFile(s string) error {
	if jwt.MatchString(strings.TrimSpace(s)) {
		return errors.New("this is a JWT: write it to a file, and the path of the file here")
	}
	return nil
}

// checkTokenFile refuses a token, because the path is shown to people.
func checkTokenFile(s string) error {
	if s = strings.TrimSpace(s); s != "" && uuid.FindString(s) == s {
		return errors.New("this is a token: write it to a file, and the path of the file here")
	}
	return nil
}

// checkEndpoint accepts the address of one server of etcd.
func checkEndpoint(s string) error {
	if shown := withoutPassword(s); shown != s {
		return fmt.Errorf("%q: a user and password have no place in the address, set username and password_file", shown)
	}
	scheme, rest, ok := strings.Cut(s, "://")
	switch {
	case !ok:
		rest = s
	case scheme != "http" && scheme != "https":
		return fmt.Errorf("%q begins with neither http:// nor https://", s)
	}
	host, _, err := net.SplitHostPort(rest)
	if err != nil || host == "" || strings.ContainsAny(rest, "/?#") {
		return fmt.Errorf("%q is not host:port or http(s)://host:port, such as \"https://10.0.0.1:2379\"", s)
	}
	return checkHostPort(rest)
}

// checkEtcdPrefix accepts keys only in the one form that flannel uses, without an empty component.
func checkEtcdPrefix(s string) error {
	if !strings.HasPrefix(s, "/") || strings.HasSuffix(s, "/") || strings.Contains(s, "//") ||
		strings.ContainsFunc(s, isSpaceOrHidden) {
		return fmt.Errorf("%q is not a prefix of keys, such as \"/coreos.com/network\": it begins with a slash, "+
			"with single slashes between names, none at the end and no white space", s)
	}
	return nil
}

// checkKubernetesName accepts the name of a Node or the prefix of annotations: a DNS name in lower case.
var checkKubernetesName = matches(253, kubernetesName,
	"%q is not a name in Kubernetes, which has lower-case letters, digits, '-' and '.'")

const kubernetesName = `[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*`

// checkConfigMap accepts "namespace/name" and "namespace/name/key".
var checkConfigMap = matches(3*253+2, kubernetesName+"/"+kubernetesName+"(/[-._a-zA-Z0-9]{1,253})?",
	`%q is not namespace/name or namespace/name/key of a ConfigMap, such as "kube-flannel/kube-flannel-cfg"`)

func checkUsername(s string) error {
	if strings.ContainsFunc(s, unicode.IsControl) {
		return fmt.Errorf("%q has a control character in it", s)
	}
	return nil
}

// checkPassword accepts what etcd's API can carry. Its error does not show the password.
func checkPassword(s string) error {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return errors.New("not a password: there is a control character in it, or a byte that is not UTF-8")
	}
	return nil
}

// checkToken accepts the characters that an HTTP header can carry. Its error does not show the token.
func checkToken(s string) error {
	if strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII || isSpaceOrHidden(r) }) {
		return fmt.Errorf("not a token: there is white space or a character beyond ASCII in it")
	}
	return nil
}

// checkKVPrefix accepts keys only in the one form that watches and ACL rules of Consul compare, without an empty
// component, and only with characters that every release of Consul accepts in a path (hashicorp/consul#22822). Consul
// 1.22 resolves "." in the paths of requests and refuses "..".
func checkKVPrefix(s string) error {
	for name := range strings.SplitSeq(s, "/") {
		if name == "." || name == ".." {
			return fmt.Errorf("%q is not a key prefix: Consul takes a key for a path, in which %q is not a name", s, name)
		}
	}
	return checkKeys(s)
}

var checkKeys = matches(math.MaxInt, `[a-z0-9._-]+(/[a-z0-9._-]+)*`, "%q is not a key prefix: one or more names of "+
	"lower-case letters, digits, '.', '_' and '-', with single slashes between them and none at the ends")

// checkService accepts what DNS can carry, since Consul drops other services from its DNS; "" is valid and turns the
// registration off.
var checkService = matches(63, `|[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?`, "%q is not a service name: at most 63 "+
	`letters, digits and '-', beginning and ending with a letter or digit; "" turns the registration off`)
