package probe

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Machine describes the machine and the programs of a measurement.
type Machine struct {
	Date   string `json:"date"`
	CPUs   int    `json:"cpus"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"` // version that built leno
	Leno   string `json:"leno"`
	Consul string `json:"consul"`
	// LoadBefore and LoadAfter are the machine's load averages, because other programs affect the
	// results.
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
}

// NewMachine describes the machine and the binaries of leno and Consul. A leno built with the race
// detector is an error, because its results would be meaningless.
func NewMachine(ctx context.Context, leno, consul string) (*Machine, error) {
	m := &Machine{Date: time.Now().UTC().Format(time.DateOnly), CPUs: runtime.NumCPU(), LoadBefore: load()}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, fmt.Errorf("uname: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(name.Release[:])
	info, err := buildinfo.ReadFile(leno)
	if err != nil {
		return nil, fmt.Errorf("no leno to measure: %w", err)
	}
	for _, s := range info.Settings {
		if s.Key == "-race" && s.Value == "true" {
			return nil, fmt.Errorf("%s has the race detector in it: measure what `make build` makes", leno)
		}
	}
	m.Go = info.GoVersion
	if m.Leno, err = version(ctx, leno); err != nil {
		return nil, err
	}
	m.Consul, err = version(ctx, consul)
	return m, err
}

// Finish records the load at the end.
func (m *Machine) Finish() { m.LoadAfter = load() }

// Write prints the description, followed by an empty line.
func (m *Machine) Write(out io.Writer) error {
	_, err := fmt.Fprintf(out, "%s, %d CPUs, Linux %s, %s\n%s, %s\nload average %s before, %s after\n\n",
		m.Date, m.CPUs, m.Kernel, m.Go, m.Leno, m.Consul, m.LoadBefore, m.LoadAfter)
	return err
}

// version returns the first line that a program prints about its version.
func version(ctx context.Context, program string) (string, error) {
	out, err := exec.CommandContext(ctx, program, "version").Output()
	if err != nil {
		return "", fmt.Errorf("%s version: %w", program, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line, nil
}

func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

// Busy returns the time that all CPUs of the machine have worked since boot, for any purpose: time
// spent idle, waiting for a disk, or taken by the hypervisor does not count. It advances in steps
// of 10 ms per CPU.
func Busy() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseBusy(string(text))
}

// parseBusy reads the first line of /proc/stat, proc_stat(5): user, nice,
// system, idle, iowait, irq, softirq, steal in hundredths of a second (USER_HZ
// is 100 on every architecture that Go knows), then the time of guests, which
// is in user and nice already.
func parseBusy(text string) (time.Duration, error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var ticks int64
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}
