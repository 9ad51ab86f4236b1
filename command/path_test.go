package command

import "testing"

func TestSearchPath(t *testing.T) {
	for path, want := range map[string]string{
		"":                        "/usr/local/sbin:/usr/sbin:/sbin",
		"/usr/local/bin:/usr/bin": "/usr/local/bin:/usr/bin:/usr/local/sbin:/usr/sbin:/sbin",
		"/sbin:/usr/bin":          "/sbin:/usr/bin:/usr/local/sbin:/usr/sbin",
	} {
		if got := SearchPath(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}
