package programs

import (
	"os"
	"syscall"
)

// Write writes a program that a test runs. No process is started at the same time: it would have a copy of the descriptor for
// a moment, and the kernel does not run a file that is open for writing.
func Write(path string, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, 0o755)
}
