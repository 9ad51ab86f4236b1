package network

import (
	"testing"

	"github.com/lenonet/leno/backend"
)

func TestEncrypts(t *testing.T) {
	types := map[string]backend.Type{"plain": {}, "secret": {Encrypts: true}}
	for name, tt := range map[string]struct {
		kind string
		s    *backend.Switch
		want bool
	}{
		"without encryption":     {"plain", nil, false},
		"with encryption":        {"secret", nil, true},
		"to one with encryption": {"plain", &backend.Switch{From: "plain", To: "secret"}, false},
		"to one without":         {"secret", &backend.Switch{From: "secret", To: "plain"}, false},
		"to other keys":          {"secret", &backend.Switch{From: "secret", To: "secret"}, true},
		"of another leno":        {"unknown", nil, false},
	} {
		if got := encrypts(types, tt.kind, tt.s); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
