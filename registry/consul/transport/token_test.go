package transport

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
)

// TestUnusableTokenFile: the error names the file and what is wrong with it. The agent's loops treat it as a missing
// right, but it does not claim that Consul denied anything.
func TestUnusableTokenFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tt := range []struct{ name, content, want string }{
		{"empty", "", "it is empty"},
		{"blank", " \n", "it is empty"},
		{"words", "two words\n", "there is more in it than a token"},
		{"missing", "-", "no such file or directory"},
		{"directory", "/", "it is no regular file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(dir, tt.name)
			var err error
			switch tt.content {
			case "-":
			case "/":
				err = os.Mkdir(file, 0o755)
			default:
				err = os.WriteFile(file, []byte(tt.content), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			c, err := New(Config{Credentials: registry.Credentials{TokenFile: file}})
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Token.Current(t.Context())
			if !errors.Is(err, registry.ErrDenied) || !errors.Is(err, registry.ErrToken) {
				t.Errorf("%v is not ErrDenied and ErrToken", err)
			}
			text := Classify(err).Error()
			if !strings.Contains(text, file) || !strings.Contains(text, tt.want) || strings.Contains(text, "denied") {
				t.Errorf("%q does not name %s and %q alone", text, file, tt.want)
			}
		})
	}
}

func TestRenewalTime(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		jitter   float64
		from, to time.Duration
	}{{0, 30 * time.Minute, 30 * time.Minute}, {1 - 1e-9, 40*time.Minute - time.Second, 40 * time.Minute}} {
		if d := renewAfter(time.Hour, tt.jitter); d < tt.from || d > tt.to {
			t.Errorf("jitter %f: due after %s", tt.jitter, d)
		}
	}
}
