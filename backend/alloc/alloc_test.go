package alloc

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/backendtest"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

func TestMain(m *testing.M) {
	nstest.RunMoreAtOnce()
	m.Run()
}

func TestConformance(t *testing.T) {
	backendtest.Run(t, backendtest.Suite{Type: Type(), LeasesOnly: true})
}

func TestNormalize(t *testing.T) {
	for _, options := range []string{"", "{}", "null", " { } "} {
		if got, err := Type().Normalize(json.RawMessage(options)); err != nil || string(got) != "{}" {
			t.Errorf("Normalize(%q) = %s, %v", options, got, err)
		}
	}
	for options, option := range map[string]string{`{"vni":1}`: "vni", `[]`: "", `{`: ""} {
		_, err := Type().Normalize(json.RawMessage(options))
		if err == nil {
			t.Errorf("Normalize(%q): no error", options)
		}
		if of := (*backend.OptionError)(nil); option != "" && (!errors.As(err, &of) || of.Option != option) {
			t.Errorf("Normalize(%q): %v does not name %q", options, err, option)
		}
	}
}
