package consul

import (
	"testing"

	"github.com/lenonet/leno/registry"
)

func TestProbe(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	read, _ := s.newToken(t, `key_prefix "`+s.prefix+`/" { policy = "read" }`)
	other, _ := s.newToken(t, `key_prefix "other/" { policy = "read" }`)
	for _, tt := range []struct {
		name  string
		token string
		want  error
	}{
		{"no network yet", rootToken, nil},
		{"an agent's rights", read, nil},
		{"no rights here", other, registry.ErrDenied},
		{"no such token", "00000000-0000-4000-8000-000000000000", registry.ErrDenied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := s.open(t, func(c *Config) { c.Token = tt.token }).Probe(testContext(t))
			if tt.want == nil && err != nil {
				t.Fatal(err)
			}
			if tt.want != nil {
				wantIs(t, err, tt.want)
			}
		})
	}
}
