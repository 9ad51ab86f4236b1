package cni

import (
	"fmt"
	"io/fs"
	"slices"
)

// Owner is who can change a file or directory: whom it belongs to, and its mode.
type Owner struct {
	UID  int
	Mode fs.FileMode
}

// CheckOwner says that nobody but trusted users can have written a file, or put
// another one into a directory. Others may write into one such as /tmp, where they
// cannot touch what is not theirs.
func CheckOwner(path string, o Owner, trusted []int) error {
	switch {
	case !slices.Contains(trusted, o.UID):
		return fmt.Errorf("%s belongs to user %d: a subnet file and the directories that it lies in have to be root's, or of the user whose /run/leno is", path, o.UID)
	case o.Mode.Perm()&0o022 != 0 && o.Mode&fs.ModeSticky == 0:
		return fmt.Errorf("%s can be written by others (its mode is %04o): chmod go-w", path, o.Mode.Perm())
	}
	return nil
}

// CheckRanges says that the gateways lie in ranges that the same file names: an
// address elsewhere would take packets from the host that are none of the network's.
func (f Facts) CheckRanges() error {
	for _, g := range f.Gateways {
		inside := false
		for _, pool := range f.Pools {
			inside = inside || pool.Bits() > 0 && pool.Bits() <= g.Bits() && pool.Contains(g.Addr())
		}
		if !inside {
			return fmt.Errorf("%s is in no range that the file has as LENO_NETWORK or LENO_IPV6_NETWORK", g)
		}
	}
	return nil
}
