package dockeropts

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
)

// Version is a version of the Docker Engine. The zero Version is one that is not
// known.
type Version struct{ Major, Minor, Patch int }

// known says that there is a version to go by.
func (v Version) known() bool { return v != Version{} }

// atLeast says whether v is that version or a later one; an unknown one is not.
func (v Version) atLeast(major, minor, patch int) bool {
	return cmp.Or(cmp.Compare(v.Major, major), cmp.Compare(v.Minor, minor), cmp.Compare(v.Patch, patch)) >= 0
}

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// ParseVersion reads a version as Docker prints it: "28.3.2", "v28.2.0-rc.1",
// "20.10.24+dfsg1", "17.05.0-ce". Docker went from 1.13 to 17.03, so anything
// between is another program's, Podman's for one.
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
		return Version{}, fmt.Errorf("%q is no version of Docker, which has 1.x and from 17 on", text)
	}
	return v, nil
}
