package trusted

import (
	"encoding/hex"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Listeners returns the users whose sockets may get what is sent to a TCP port of a loopback address of this host:
// those that listen on it at a loopback or unspecified address. It returns nil if there are none or the kernel does not
// tell.
func Listeners(port uint16) (users []int) {
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile("/proc/thread-self/net/" + table) // proc_pid_net(5)
		if err == nil {
			users = append(users, listeners(string(text), port)...)
		}
	}
	slices.Sort(users)
	return slices.Compact(users)
}

// listeners reads one of the kernel's tables of sockets.
func listeners(table string, port uint16) (users []int) {
	const listening = "0A"
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 8 || fields[3] != listening {
			continue
		}
		address, portText, _ := strings.Cut(fields[1], ":")
		number, err := strconv.ParseUint(portText, 16, 16)
		if err != nil || uint16(number) != port {
			continue
		}
		addr, ok := tableAddr(address)
		user, err := strconv.Atoi(fields[7])
		if ok && err == nil && (addr.IsLoopback() || addr.IsUnspecified()) {
			users = append(users, user)
		}
	}
	return users
}

// tableAddr parses an address as the tables have it: words of four bytes, each in the order of this host, which is
// little endian wherever leno is built for.
func tableAddr(text string) (netip.Addr, bool) {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw)%4 != 0 {
		return netip.Addr{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		slices.Reverse(raw[i : i+4])
	}
	addr, ok := netip.AddrFromSlice(raw)
	return addr.Unmap(), ok
}
