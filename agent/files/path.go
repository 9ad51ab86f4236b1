package files

import (
	"os"
	"path/filepath"
	"strings"
)

// IsSame reports whether two absolute paths name the same file: the same name in the same directory, however that
// is spelled (/var/run/leno/a.env and /run/leno/a.env). The files need not exist. A link at the end of a path counts
// as a file, because replacing the file replaces the link.
func IsSame(a, b string) bool {
	dirA, nameA := filepath.Split(a)
	dirB, nameB := filepath.Split(b)
	return nameA == nameB && sameDirectory(dirA, dirB)
}

// sameDirectory reports whether two directories are the same. If they do not exist yet, their nearest existing
// parents must be the same.
func sameDirectory(a, b string) bool {
	for {
		infoA, errA := os.Stat(a)
		infoB, errB := os.Stat(b)
		switch {
		case errA == nil && errB == nil:
			return os.SameFile(infoA, infoB)
		case errA == nil || errB == nil:
			return false
		}
		aboveA, nameA := filepath.Split(strings.TrimRight(a, "/"))
		aboveB, nameB := filepath.Split(strings.TrimRight(b, "/"))
		if nameA != nameB || nameA == "" {
			return false
		}
		a, b = aboveA, aboveB
	}
}
