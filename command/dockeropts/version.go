package dockeropts

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
)

// Version is a version of the Docker Engine. The zero Version means unknown.
type Version struct{ Major, Minor, Patch int }

// isKnown reports whether the version is known.
func (v Version) isKnown() bool { return v != Version{} }

// atLeast reports whether v is at least the given version; an unknown version is not.
func (v Version) atLeast(major, minor, patch int) bool {
	return cmp.Or(cmp.Compare(v.Major, major), cmp.Compare(v.Minor, minor), cmp.Compare(v.Patch, patch)) >= 0
}

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// ParseVersion parses a version as Docker prints it: "28.3.2", "v28.2.0-rc.1", "20.10.24+dfsg1",
// "17.05.0-ce". Docker went from 1.13 to 17.03, so a version between them belongs to another
// program, such as Podman.
func ParseVersion(text string) (Version, error) {
	m := regexp.MustCompile(`^v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:[-+~].*)?$`).FindStringSubmatch(text)
	if m == nil {
		return Version{}, fmt.Errorf("%q is not a version such as 28.3.2", text)
	}
	var v Version
	for i, part := range []*int{&v.Major, &v.Minor, &v.Patch} {
		*part, _ = strconv.Atoi("0" + m[i+1]) // digits only
	}
	if v.Major < 1 || v.Major > 1 && v.Major < 17 {
		return Version{}, fmt.Errorf("%q is not a version of Docker: these are 1.x, 17 and later", text)
	}
	return v, nil
}
