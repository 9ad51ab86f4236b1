package cli

import (
	"slices"
	"strings"
	"testing"
)

// Flags may stand anywhere, and "--" ends them.
func TestParse(t *testing.T) {
	for _, args := range []string{
		"default 10.5.34.0/24 -token=t", "-token t default 10.5.34.0/24", "default -token=t 10.5.34.0/24", "-token=t -- default 10.5.34.0/24",
	} {
		c := newCommand(Meta{}, Spec{Name: "lease show", Args: "[NETWORK] SUBNET", Min: 1, Max: 2, Flags: NewSession(Meta{}).Register})
		rest, err := c.Parse(strings.Fields(args))
		if err != nil || !slices.Equal(rest, []string{"default", "10.5.34.0/24"}) || c.Flags.Lookup("token").Value.String() != "t" {
			t.Errorf("%s: %v, %v", args, rest, err)
		}
	}
}
