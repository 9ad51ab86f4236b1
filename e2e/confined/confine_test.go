package confined

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/lenonet/leno/e2e/docpages"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// A confinement holds the restrictions that examples/systemd/leno.service puts on a process. It is
// read from that file, so the tests run under the restrictions that users get. A network namespace
// has no systemd; setpriv, mounts and a seccomp filter do what it does, each in the way systemd
// does it (systemd.exec(5)).
type confinement struct {
	unit map[string]string
	caps []string // "net_admin"
}

// lenoID is the id of the user leno, which need not exist, because nothing looks up its name.
const lenoID = 64199

// confined says how each setting of the unit is applied, or why it is not.
var confined = map[string]string{
	"User": "setpriv", "Group": "setpriv", "AmbientCapabilities": "setpriv", "CapabilityBoundingSet": "setpriv",
	"NoNewPrivileges": "setpriv", "SupplementaryGroups": "setpriv", "UMask": "shell",
	"StateDirectory": "mount", "StateDirectoryMode": "mount", "RuntimeDirectory": "mount", "RuntimeDirectoryMode": "mount",
	"ProtectSystem": "mount", "ProtectHome": "mount", "PrivateTmp": "mount",
	"ProtectKernelTunables": "mount", "ReadWritePaths": "mount", "ProtectKernelModules": "mount", "ProtectProc": "mount",
	"DevicePolicy": "mount", "DeviceAllow": "mount",
	"RestrictAddressFamilies": "seccomp", "SystemCallFilter": "seccomp", "SystemCallErrorNumber": "seccomp",
	"MemoryDenyWriteExecute": "seccomp", "RestrictNamespaces": "seccomp",

	"RuntimeDirectoryPreserve": "about the end of the unit", "RemoveIPC": "about the end of the unit",
	"ProtectKernelLogs": "taken by the capabilities and system calls too", "ProtectClock": "taken by the capabilities and system calls too",
	"ProtectHostname": "taken by the capabilities and system calls too", "ProtectControlGroups": "below /sys, which is read-only",
	"RestrictRealtime": "the agent asks for no scheduling", "RestrictSUIDSGID": "the agent sets no such bit",
	"LockPersonality": "the race detector changes it", "KeyringMode": "the agent has no keys",
	"SystemCallArchitectures": "the filter knows one",
}

// readConfinement reads the unit and its drop-ins, and fails on a setting that this file does not
// know.
func readConfinement(t *testing.T, dropIns ...string) confinement {
	t.Helper()
	c := confinement{unit: docpages.Unit(t, append([]string{"leno.service"}, dropIns...)...)}
	known := []string{"Description", "Documentation", "Wants", "After", "StartLimitIntervalSec", "Type", "ExecStart", "ExecReload",
		"TimeoutStartSec", "Restart", "RestartSec", "RestartPreventExitStatus", "WantedBy"}
	for key := range c.unit {
		if confined[key] == "" && !slices.Contains(known, key) {
			t.Errorf("the unit's %s is not done here", key)
		}
	}
	for _, key := range []string{"User", "NoNewPrivileges", "ProtectSystem", "SystemCallFilter", "DeviceAllow", "MemoryDenyWriteExecute"} {
		if c.unit[key] == "" {
			t.Errorf("the unit lacks %s", key)
		}
	}
	if c.unit["AmbientCapabilities"] != c.unit["CapabilityBoundingSet"] {
		t.Errorf("rights %q within %q", c.unit["AmbientCapabilities"], c.unit["CapabilityBoundingSet"])
	}
	for _, name := range strings.Fields(c.unit["AmbientCapabilities"]) {
		c.caps = append(c.caps, strings.ToLower(strings.TrimPrefix(name, "CAP_")))
	}
	return c
}

// script returns a shell script that applies the restrictions and then executes its arguments.
func (c confinement) script() string {
	state, run := "/var/lib/"+c.unit["StateDirectory"], "/run/"+c.unit["RuntimeDirectory"]
	groups := "--clear-groups"
	if c.unit["SupplementaryGroups"] == "root" {
		groups = "--groups=0"
	}
	caps := "-all"
	for _, name := range c.caps {
		caps += ",+" + name
	}
	lines := []string{
		// Like systemd: everything below the directory changes its owner if the directory is not
		// the user's.
		fmt.Sprintf(`for dir in %s %s; do mkdir -p $dir; [ "$(stat -c %%u $dir)" = %d ] || chown -R %[3]d:%[3]d $dir; done`, state, run, lenoID),
		fmt.Sprintf("chmod %s %s; chmod %s %s", c.unit["StateDirectoryMode"], state, c.unit["RuntimeDirectoryMode"], run),
		"mount -t proc -o hidepid=" + c.unit["ProtectProc"] + " proc /proc",
		"mount -t tmpfs -o mode=755 dev /dev; mkdir /dev/net",
		"mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/zero c 1 5; mknod -m 666 /dev/full c 1 7; mknod -m 666 /dev/random c 1 8; mknod -m 666 /dev/urandom c 1 9",
	}
	if slices.Contains(strings.Fields(c.unit["DeviceAllow"]), "/dev/net/tun") {
		lines = append(lines, "mknod -m 666 /dev/net/tun c 10 200") // as udev makes it
	}
	lines = append(lines,
		"for dir in /tmp /var/tmp; do mount -t tmpfs -o mode=1777 tmp $dir; done",
		"for dir in /home /root /run/user /usr/lib/modules; do [ ! -d $dir ] || mount -t tmpfs -o mode=000 none $dir; done",
		`while read -r _ path _; do case $path in /dev|/dev/*|/proc|/proc/*|/tmp|/var/tmp) ;; *) mount -o remount,bind,ro "$path" 2>/dev/null || :; esac; done </proc/self/mounts`,
		"mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys",
		fmt.Sprintf("for dir in %s %s %s; do mount --bind $dir $dir; mount -o remount,bind,rw $dir; done", state, run, c.unit["ReadWritePaths"]),
		"! touch /etc/leno.d/x /run/x /usr/x /sys/x /proc/sys/kernel/x 2>/dev/null",
		"cd /; umask "+c.unit["UMask"],
		fmt.Sprintf(`exec setpriv --reuid=%d --regid=%[1]d %[3]s --inh-caps=%[2]s --ambient-caps=%[2]s --bounding-set=%[2]s --no-new-privs /usr/local/bin/filter "$@"`, lenoID, caps, groups),
	)
	return strings.Join(lines, "\n")
}

// A filter holds the contents of a seccomp filter.
type filter struct {
	Allow     []uint32 // system calls, by number
	Families  []uint32 // address families that socket(2) accepts
	Errno     uint32
	Socket    uint32
	WriteExec []uint32 // calls whose third argument must not request memory that is both writable and executable
}

// filter returns the unit's filter as JSON with this machine's system call numbers.
func (c confinement) filter(t *testing.T) string {
	t.Helper()
	numbers := systemCalls(t)
	allowed := map[string]bool{}
	for _, word := range strings.Fields(c.unit["SystemCallFilter"]) {
		name, not := strings.CutPrefix(word, "~")
		for _, call := range callSet(t, name) {
			allowed[call] = !not
		}
	}
	if c.unit["RestrictNamespaces"] == "yes" {
		allowed["unshare"], allowed["setns"] = false, false
	}
	f := filter{Errno: uint32(unix.EPERM), Socket: numbers["socket"]}
	for call, is := range allowed {
		if number, known := numbers[call]; known && is {
			f.Allow = append(f.Allow, number)
		}
	}
	slices.Sort(f.Allow)
	families := map[string]uint32{
		"AF_UNIX": unix.AF_UNIX, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_NETLINK": unix.AF_NETLINK,
		"AF_PACKET": unix.AF_PACKET,
	}
	for _, name := range strings.Fields(c.unit["RestrictAddressFamilies"]) {
		if families[name] == 0 {
			t.Fatalf("%s is not known here", name)
		}
		f.Families = append(f.Families, families[name])
	}
	if c.unit["MemoryDenyWriteExecute"] == "yes" {
		f.WriteExec = []uint32{numbers["mmap"], numbers["mprotect"]}
	}
	if len(f.Allow) < 200 || len(f.Families) == 0 {
		t.Fatalf("a filter of %d calls and %d families", len(f.Allow), len(f.Families))
	}
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// callSet returns the system calls of a name in the unit: those of the set, or the call itself.
func callSet(t *testing.T, name string) []string {
	t.Helper()
	if !strings.HasPrefix(name, "@") {
		return []string{name}
	}
	text, err := exec.Command("systemd-analyze", "--no-pager", "syscall-filter", name).Output()
	if err != nil {
		t.Fatalf("systemd-analyze syscall-filter %s: %v", name, err)
	}
	var out []string
	for _, line := range strings.Split(string(text), "\n") {
		word := strings.TrimSpace(line)
		switch {
		case word == line, strings.HasPrefix(word, "#"), word == "":
		default:
			out = append(out, callSet(t, word)...)
		}
	}
	return out
}

// systemCalls returns this machine's system call numbers from the C library's headers.
func systemCalls(t *testing.T) map[string]uint32 {
	t.Helper()
	cmd := exec.Command("gcc", "-E", "-dM", "-")
	cmd.Stdin = strings.NewReader("#include <asm/unistd.h>\n")
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("gcc -E: %v", err)
	}
	out := map[string]uint32{}
	for _, m := range regexp.MustCompile(`(?m)^#define __NR_(\w+) (\d+)$`).FindAllStringSubmatch(string(text), -1) {
		number, err := strconv.ParseUint(m[2], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		out[m[1]] = uint32(number)
	}
	return out
}

// filterVariable makes the test binary install the filter in it and execute the program in its
// arguments.
const filterVariable = "SECCOMP_FILTER"

// becomeFiltered installs a filter and executes args. It returns only with an error.
func becomeFiltered(text string, args []string) error {
	var f filter
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return err
	}
	raw, err := bpf.Assemble(f.program())
	if err != nil {
		return err
	}
	program := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		program[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, filterVariable+"=") })
	runtime.LockOSThread() // the filter belongs to the thread, which execve makes the process's only one
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return syscall.Exec(args[0], args, env)
}

// program returns the filter in the kernel's format. The layout is that of struct seccomp_data: the
// number, the architecture, the instruction pointer, six arguments of eight bytes.
func (f filter) program() []bpf.Instruction {
	const number, argument = 0, 16
	refuse := func(errno uint32) bpf.Instruction { return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | errno} }
	out := []bpf.Instruction{bpf.LoadAbsolute{Off: number, Size: 4}}
	socket := []bpf.Instruction{bpf.LoadAbsolute{Off: argument, Size: 4}}
	for _, family := range f.Families {
		socket = append(socket, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: family, SkipTrue: 1}, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
	}
	socket = append(socket, refuse(uint32(unix.EAFNOSUPPORT)))
	out = append(out, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: f.Socket, SkipTrue: uint8(len(socket))})
	out = append(out, socket...)
	for _, call := range f.WriteExec {
		out = append(out,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: 5},
			bpf.LoadAbsolute{Off: argument + 2*8, Size: 4},
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: unix.PROT_WRITE | unix.PROT_EXEC},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PROT_WRITE | unix.PROT_EXEC, SkipTrue: 1},
			refuse(uint32(unix.EPERM)),
			bpf.LoadAbsolute{Off: number, Size: 4})
	}
	for _, call := range f.Allow {
		out = append(out, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: 1}, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
	}
	return append(out, refuse(f.Errno))
}
