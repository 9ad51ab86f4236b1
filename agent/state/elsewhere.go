package state

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// AgentElsewhere returns a process in whose network namespace an agent runs, if that is not the namespace of the
// calling thread and the process has the same directory. Agents of several namespaces share such a directory.
func AgentElsewhere(dir string) (pid int, found bool) {
	mine, err := os.Stat(dir)
	if err != nil {
		return 0, false
	}
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return 0, false
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, false
	}
	seen := map[string]bool{own: true} // namespaces
	for _, process := range processes {
		namespace, err := os.Readlink(filepath.Join(process, "ns/net"))
		if err != nil || seen[namespace] {
			continue // it has ended
		}
		theirs, err := os.Stat(filepath.Join(process, "root", dir))
		if err != nil || !os.SameFile(mine, theirs) {
			continue
		}
		seen[namespace] = true
		sockets, err := os.ReadFile(filepath.Join(process, "net/unix"))
		if err == nil && hasSocket(string(sockets), hostSocket) {
			pid, err := strconv.Atoi(filepath.Base(process))
			return pid, err == nil
		}
	}
	return 0, false
}

// hasSocket reports whether a socket is listed by its name, which is the last word of its line.
func hasSocket(sockets, name string) bool {
	for line := range strings.Lines(sockets) {
		if words := strings.Fields(line); len(words) > 0 && words[len(words)-1] == name {
			return true
		}
	}
	return false
}
