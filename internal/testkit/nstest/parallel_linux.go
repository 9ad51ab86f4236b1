package nstest

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"

	"github.com/lenonet/leno/internal/testkit/waiting"
)

// RunMoreAtOnce lets more tests of this process run at once than there are processors, because tests with namespaces
// mostly wait for programs, packets and the kernel; see waiting.Parallel.
func RunMoreAtOnce() {
	waiting.Parallel(3 * runtime.GOMAXPROCS(0))
}

// starting is locked for reading while a process is being started.
var starting sync.RWMutex

// start starts a program in the namespace, and returns when the program has closed descriptor 3 or ended.
func (ns *NS) start(cmd *exec.Cmd) (err error) {
	starting.RLock()
	defer starting.RUnlock()
	running, closes, err := os.Pipe()
	if err != nil {
		return err
	}
	defer running.Close()
	cmd.ExtraFiles = []*os.File{closes}
	ns.Do(func() { err = cmd.Start() })
	err = errors.Join(err, closes.Close())
	if err == nil {
		_, err = io.Copy(io.Discard, running)
	}
	return err
}

// AwaitForks waits until no process that another test is just starting has copies of this process's descriptors, which it
// has until it runs its program. What was closed before is closed then. Otherwise a port or a device may be in use for
// another moment.
func AwaitForks() {
	starting.Lock()
	defer starting.Unlock()
}
