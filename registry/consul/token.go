package consul

import (
	"context"
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

// token is the ACL token of one client: fixed, from a file, or from a login.
type token struct {
	hide  func(secret string) // nil for a caller's token
	login *login              // nil for a caller's token

	mu     sync.Mutex
	file   string // "" for none
	loaded bool   // the file has been read
	value  string
}

// current returns the token to send, "" for none. It reads the file or logs in on the first call.
func (t *token) current(ctx context.Context) (string, error) {
	if t.hasLogin() {
		return t.login.current(ctx)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == "" || t.loaded {
		return t.value, nil
	}
	return t.value, t.readLocked()
}

// afterDenial returns the token to use after Consul gave an answer that denies the token used. It reads the file again,
// or logs in again if that may help. The result is the token used if there is no other one. On an error the old token
// stays.
func (t *token) afterDenial(ctx context.Context, used, answer string) (string, error) {
	if t.hasLogin() {
		return t.login.afterDenial(ctx, used, answer)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == "" {
		return t.value, nil
	}
	return t.value, t.readLocked()
}

func (t *token) hasLogin() bool { return t.login != nil && t.login.authMethod() != "" }

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
	value, err := readSecret(file)
	if err != nil {
		return "", &tokenFileError{err}
	}
	return value, nil
}

// readSecret reads a file with a token or a JWT. The error names the file, and never shows what is in it.
func readSecret(file string) (string, error) {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s: it is no regular file", file) // a FIFO would block
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, reason(err))
	}
	value, err := ParseToken(data)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
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
