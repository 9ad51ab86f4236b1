// Package probe reads what programs and the machine show of themselves from
// outside: CPU time, memory, versions, load. It measures nothing by itself and
// knows nothing of leno but how its binary is built.
package probe

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime is what all threads of a process have used, user and system, to the
// nanosecond where /proc/PID/stat has 10 ms. Programs it ran are not in it.
func CPUTime(pid int) (time.Duration, error) {
	const schedClock = 2 // CPUCLOCK_SCHED, clock_getcpuclockid(3)
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &t); err != nil {
		return 0, fmt.Errorf("cpu time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// Memory reads lines like "VmRSS:  1234 kB" of a process's status, in MiB. A
// name that is not there is an error.
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
