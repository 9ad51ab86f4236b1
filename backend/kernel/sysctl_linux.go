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
