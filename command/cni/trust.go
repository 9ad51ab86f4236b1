package cni

import (
	"fmt"
	"io/fs"
	"slices"
)

// fileOwner describes who can change a file or directory: its owner and its mode.
type fileOwner struct {
	UID  int
	Mode fs.FileMode
}

// checkOwner returns an error unless only trusted users can have written a file, or can replace
// the entries of a directory. Others may write into a directory such as /tmp, where they cannot
// touch files of other users.
func checkOwner(path string, o fileOwner, trusted []int) error {
	switch {
	case !slices.Contains(trusted, o.UID):
		return fmt.Errorf("%s belongs to user %d: a subnet file and the directories above it must belong to root, "+
			"or to the owner of /run/leno", path, o.UID)
	case o.Mode.Perm()&0o022 != 0 && o.Mode&fs.ModeSticky == 0:
		return fmt.Errorf("%s can be written by others (its mode is %04o): chmod go-w", path, o.Mode.Perm())
	}
	return nil
}
