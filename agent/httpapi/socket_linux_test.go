package httpapi

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/lenonet/leno/internal/testkit/agenttest"
)

// The variables with which TestSocketOfTheGroup runs itself: in a mount namespace of its own, and as another user.
const (
	serveVariable   = "LENO_TEST_GROUP_SERVED"
	connectVariable = "LENO_TEST_GROUP_CONNECTS"
)

// TestSocketOfTheGroup: root and the members of the group leno can connect to the socket of an agent that runs as root.
// Other users cannot, and without that group only root can.
func TestSocketOfTheGroup(t *testing.T) {
	if path := os.Getenv(connectVariable); path != "" {
		conn, err := net.Dial("unix", path)
		if err == nil {
			err = conn.Close()
		}
		must(t, err)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: groups and other users")
	}
	if os.Getenv(serveVariable) == "" {
		rerun := rerunOf(t.Name(), serveVariable+"=1")
		rerun.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if out, err := rerun.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	const group, user = 54321, 54322
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755)) // other users may enter
	groups := filepath.Join(dir, "group")
	must(t, os.WriteFile(groups, []byte("root:x:0:\n"), 0o644))
	must(t, syscall.Mount(groups, "/etc/group", "", syscall.MS_BIND, "")) // ends with this process

	path := filepath.Join(dir, "run", "leno.sock")
	h := newHost(t, nil)
	h.options.Socket = path
	check := func(want, address string, groupID uint32, allowed ...syscall.Credential) {
		t.Helper()
		h.serve(address)
		agenttest.Eventually(t, func() error { // the socket gets its group a moment after it is there
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			owner := info.Sys().(*syscall.Stat_t)
			if got := fmt.Sprint(owner.Uid, owner.Gid, info.Mode().Perm()); got != fmt.Sprint(0, groupID, os.FileMode(socketMode)) {
				return fmt.Errorf("the socket has %s", got)
			}
			return nil
		})
		for _, as := range []syscall.Credential{
			{Uid: 0, Gid: 0}, {Uid: user, Gid: group}, {Uid: user, Gid: user, Groups: []uint32{group}}, {Uid: user, Gid: user},
		} {
			connect := rerunOf(t.Name(), connectVariable+"="+path)
			connect.SysProcAttr = &syscall.SysProcAttr{Credential: &as}
			out, err := connect.CombinedOutput()
			may := slices.ContainsFunc(allowed, func(c syscall.Credential) bool { return fmt.Sprint(c) == fmt.Sprint(as) })
			if may != (err == nil) || !may && !strings.Contains(string(out), "permission denied") {
				t.Errorf("%s, as %+v: %v\n%s", want, as, err, out)
			}
		}
		must(t, h.stop())
	}
	root := syscall.Credential{Uid: 0, Gid: 0}
	check("without the group", "127.0.0.1:0", 0, root)
	must(t, os.WriteFile(groups, fmt.Appendf(nil, "root:x:0:\nleno:x:%d:\n", group), 0o644))
	for _, address := range []string{"127.0.0.1:0", "unix://" + path} {
		check("with the group, at "+address, address, group, root, syscall.Credential{Uid: user, Gid: group},
			syscall.Credential{Uid: user, Gid: user, Groups: []uint32{group}})
	}
}

// rerunOf returns a command that runs one test of this program with another variable.
func rerunOf(test, variable string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), variable)
	return cmd
}
