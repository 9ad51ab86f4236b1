// Package probe reads what programs and the machine reveal from outside: CPU time, memory,
// versions, load. It measures nothing itself and knows nothing of leno except how its binary is
// built.
package probe

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime returns the user and system time of all threads of a process. It is exact to the
// nanosecond, unlike the 10 ms of /proc/PID/stat. It excludes programs that the process has run.
func CPUTime(pid int) (time.Duration, error) {
	const schedClock = 2 // CPUCLOCK_SCHED, clock_getcpuclockid(3)
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &t); err != nil {
		return 0, fmt.Errorf("cpu time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// Memory reads lines such as "VmRSS: 1234 kB" from a process's status file and returns the values
// in MiB. A missing name is an error.
func Memory(pid int, names ...string) (map[string]float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if fields := strings.Fields(value); len(fields) == 2 && fields[1] == "kB" {
			kib, err := strconv.ParseFloat(fields[0], 64)
			if err != nil {
				return nil, fmt.Errorf("/proc/%d/status: %q: %w", pid, line, err)
			}
			out[name] = kib / 1024
		}
	}
	for _, name := range names {
		if _, ok := out[name]; !ok {
			return nil, fmt.Errorf("/proc/%d/status has no %s", pid, name)
		}
	}
	return out, nil
}
