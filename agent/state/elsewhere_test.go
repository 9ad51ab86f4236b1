package state

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestAgentElsewhere finds an agent by a process in its namespace. Other agents may run on this machine.
func TestAgentElsewhere(t *testing.T) {
	ns, dir := nstest.New(t), t.TempDir()
	process := exec.Command("sleep", "1000")
	var err error
	ns.Do(func() {
		if err = process.Start(); err != nil {
			return
		}
		t.Cleanup(func() {
			_ = process.Process.Kill()
			_ = process.Wait() // reports that it was killed
		})
		var unlock func() error
		if unlock, err = LockHost(); err == nil {
			t.Cleanup(func() { must(t, unlock()) })
		}
	})
	must(t, err)
	if pid, found := AgentElsewhere(dir); !found || pid <= 0 {
		t.Errorf("found %t, process %d", found, pid)
	}
	ns.Do(func() {
		if pid, found := AgentElsewhere(dir); found && pid == process.Process.Pid {
			t.Error("found the agent of the same namespace")
		}
	})
	if _, found := AgentElsewhere(filepath.Join(dir, "none")); found {
		t.Error("found an agent with a directory that does not exist")
	}
}

func TestHasSocket(t *testing.T) {
	const sockets = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 12345 @leno-agent
0000000000000000: 00000003 00000000 00000000 0001 03 12346
`
	if !hasSocket(sockets, hostSocket) || hasSocket(sockets, "@leno") {
		t.Error("it does not find the sockets that are listed")
	}
}
