package consul

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"unicode"

	"github.com/lenonet/leno/registry"
)

// anonymousToken is the secret of Consul's anonymous token. Sending it differs from sending no token: without one, the
// local Consul agent uses its own default token for the request.
const anonymousToken = "anonymous"

// token is the ACL token of one client, either fixed or from a file.
type token struct {
	hide func(secret string) // nil for a caller's token

	mu     sync.Mutex
	file   string // "" for none
	loaded bool   // the file has been read
	value  string
}

// current returns the token to send, "" for none. It reads the file on the first call.
func (t *token) current() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == "" || t.loaded {
		return t.value, nil
	}
	return t.value, t.readLocked()
}

// reload reads the file again and reports whether the token has changed. On an error the old token stays.
func (t *token) reload() (changed bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == "" {
		return false, nil
	}
	old := t.value
	err = t.readLocked()
	return t.value != old, err
}

func (t *token) readLocked() error {
	value, err := readToken(t.file)
	if err != nil {
		return err
	}
	t.loaded = true
	t.takeLocked(value)
	return nil
}

func (t *token) takeLocked(value string) {
	if t.hide != nil && value != "" {
		t.hide(value)
	}
	t.value = value
}

// set replaces the token for all later requests, and reports whether it has changed. If there is a file, value is its
// content.
func (t *token) set(value, file string) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed = t.value != value
	t.file, t.loaded = file, file != ""
	t.takeLocked(value)
	return changed
}

// tokenFileError is the error of a token file that cannot be used. Its text names only the file and the reason: Consul
// has denied nothing.
type tokenFileError struct{ err error }

func (e *tokenFileError) Error() string { return "consul token file " + e.err.Error() }
func (e *tokenFileError) Unwrap() []error {
	return []error{registry.ErrToken, registry.ErrDenied, e.err}
}

func readToken(file string) (string, error) {
	unusable := func(why string) error { return &tokenFileError{fmt.Errorf("%s: %s", file, why)} }
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return "", unusable("it is no regular file") // a FIFO would block
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", &tokenFileError{fmt.Errorf("%s: %w", file, reason(err))}
	}
	value, err := ParseToken(data)
	if err != nil {
		return "", unusable(err.Error())
	}
	return value, nil
}

// ParseToken returns the token in the content of a token file, without surrounding white space.
func ParseToken(data []byte) (string, error) {
	value := strings.TrimSpace(string(data))
	if value == "" {
		return "", errors.New("it is empty")
	}
	if strings.ContainsFunc(value, unicode.IsSpace) {
		return "", errors.New("there is more in it than a token")
	}
	return value, nil
}

// reason returns an error of a file without the operation and the path.
func reason(err error) error {
	var about *fs.PathError
	if errors.As(err, &about) {
		return about.Err
	}
	return err
}
