package backend

import (
	"errors"
	"fmt"
	"testing"
)

func TestByPart(t *testing.T) {
	one, two, three := errors.New("one"), errors.New("two"), errors.New("three")
	for name, tt := range map[string]struct {
		err            error
		device, routes string
	}{
		"none":                    {About(Routes, nil), "", ""},
		"unmarked":                {one, "one", ""},
		"marked":                  {About(Routes, one), "", "one"},
		"joined":                  {errors.Join(About(Device, one), About(Routes, errors.Join(two, three)), nil), "one", "two\nthree"},
		"marked before":           {About(Device, errors.Join(About(Routes, one), two)), "two", "one"},
		"with text around":        {fmt.Errorf("apply: %w", About(Routes, one)), "", "apply: one"},
		"two with text around":    {About(Routes, fmt.Errorf("%w: %w", one, two)), "", "one: two"},
		"joined within the joint": {errors.Join(errors.Join(About(Routes, one), two), About(Routes, three)), "two", "one\nthree"},
	} {
		t.Run(name, func(t *testing.T) {
			parts := ByPart(tt.err)
			text := func(p Part) string {
				if parts[p] == nil {
					return ""
				}
				return parts[p].Error()
			}
			if text(Device) != tt.device || text(Routes) != tt.routes {
				t.Errorf("device %q, routes %q", text(Device), text(Routes))
			}
			if tt.err != nil && !errors.Is(errors.Join(parts[Device], parts[Routes]), one) {
				t.Error("an error was lost on the way")
			}
		})
	}
}
