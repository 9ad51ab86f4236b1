package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const sysctlRoot = "/proc/sys/net"

// Sysctl reads a value below net. The name is given in parts because a device's name may contain a
// dot: Sysctl("ipv4", "conf", "eth0.7", "rp_filter"). It reads in the network namespace of the
// calling thread.
func Sysctl(parts ...string) (string, error) {
	data, err := os.ReadFile(filepath.Join(sysctlRoot, filepath.Join(parts...)))
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// SysctlName returns a name below net as sysctl(8) reads it, in which a dot in a part is a slash.
func SysctlName(parts ...string) string {
	name := "net"
	for _, part := range parts {
		name += "." + strings.ReplaceAll(part, ".", "/")
	}
	return name
}

// ReversePathFilter returns the rp_filter that applies to IPv4 packets that arrive on a device, "1" if it is strict:
// the larger of the device's own and of "all" (ip-sysctl). It returns "" if neither can be read.
func ReversePathFilter(link string) (mode string) {
	for _, device := range []string{"all", link} {
		if value, err := Sysctl("ipv4", "conf", device, "rp_filter"); err == nil {
			mode = max(mode, value)
		}
	}
	return mode
}

// AcceptAsymmetric makes the kernel accept IPv4 packets on a device although the route to their source leads to another
// one, and reports whether it changed anything. It sets the device's rp_filter to 2 (loose) if the filter is strict
// there, which is when the larger of that and of "all" is 1 (ip-sysctl). A host without a strict filter is left as it
// is.
func AcceptAsymmetric(link string) (changed bool, err error) {
	own, err := Sysctl("ipv4", "conf", link, "rp_filter")
	if err != nil {
		return false, err
	}
	all, err := Sysctl("ipv4", "conf", "all", "rp_filter")
	if err != nil || max(own, all) != "1" {
		return false, err
	}
	return SetSysctl("2", "ipv4", "conf", link, "rp_filter")
}

// SetSysctl writes a value if it differs, and reports whether it did.
func SetSysctl(value string, parts ...string) (bool, error) {
	have, err := Sysctl(parts...)
	if err != nil || have == value {
		return false, err
	}
	// Not WriteFile: there is nothing to create or truncate below /proc/sys.
	f, err := os.OpenFile(filepath.Join(sysctlRoot, filepath.Join(parts...)), os.O_WRONLY, 0)
	if err != nil {
		return false, fmt.Errorf("write sysctl: %w", err)
	}
	_, err = f.WriteString(value)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return false, fmt.Errorf("write sysctl: %w", err)
	}
	return true, nil
}
