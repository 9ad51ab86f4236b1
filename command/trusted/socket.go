package trusted

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// CheckSocket returns an error unless an agent of this network namespace listens at a socket that only trusted users
// can have created, and this process may connect to it.
func CheckSocket(path string, users ...int) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if err := checkDirectories(real, users); err != nil {
		return err
	}
	info, err := os.Lstat(real)
	if err != nil {
		return err
	}
	if owner := ownerOf(info).UID; info.Mode()&os.ModeSocket == 0 || !slices.Contains(users, owner) {
		return fmt.Errorf("%s is no socket of an agent (%s, user %d)", path, info.Mode(), owner)
	}
	table, err := os.ReadFile("/proc/thread-self/net/unix")
	if err == nil && !isListed(string(table), path) {
		err = fmt.Errorf("%s belongs to an agent in another network namespace, or to none", path)
	}
	if err != nil {
		return err
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	return conn.Close()
}

// isListed reports whether the kernel's table of the sockets of a network namespace contains a listener with a path:
// the kernel connects to the socket at a path from every namespace.
func isListed(table, path string) bool {
	const acceptsConnections = "00010000" // __SO_ACCEPTCON of unix(7)
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) == 8 && fields[3] == acceptsConnections && fields[7] == path {
			return true
		}
	}
	return false
}
