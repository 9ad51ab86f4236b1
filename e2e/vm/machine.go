// Package vm runs virtual machines with a chosen kernel, systemd and real packages, for what
// namespaces of one kernel cannot show. Machines are connected to the switch of a lab (e2e/lab),
// beside its hosts and its store, if any:
//
//	switch   bridge, 192.0.2.254/24     the network between machines
//	vm-a     eth0 192.0.2.11/24         a machine, with the first addresses that no host has
//	vm-b     eth0 192.0.2.12/24         …
//
// QEMU emulates the processor, so machines behave as real ones but are slow. Their disk is a layer
// above the image of `tools/get vm-image`. It owns the processes and the disks, and refuses to know
// what runs inside. Like the lab, it does not depend on testing.
package vm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

// Options describe a machine.
type Options struct {
	// Name is the host name, and the name of the port on the lab's switch: at most 15 characters.
	Name string
	// Kernel is the name of a kernel of `tools/get vm-kernel`, for example "6.12".
	Kernel string
	// Files are files that the machine can read in /mnt: for each name there, the path of a file of
	// this host.
	Files map[string]string
	// Parameters are additional parameters of the kernel, for example "apparmor=0".
	Parameters []string
	// Shell starts a root shell on the console, for manual work.
	Shell bool
	// Memory is in MiB. Default 512.
	Memory int
	// Processors is the number of processors. Default 1: emulated ones wait for each other.
	Processors int
	// Cards is the number of additional network cards: eth1, eth2, …, on the same switch, down and
	// without addresses.
	Cards int
}

// A Machine is a virtual machine. Run, ReadFile, WriteFile and Console may be called concurrently;
// the other methods by one goroutine at a time, and not while one of those runs.
type Machine struct {
	Name  string
	Addrs []netip.Addr // on eth0, IPv4 then IPv6
	Port  *lab.Port
	Cards []*lab.Port // of eth1, eth2, …
	Dir   string      // its files on this host: console.log, console.sock, disk.qcow2

	opts    Options
	lab     *lab.Lab
	kernel  kernel
	process *lab.Process // QEMU, or nil before the first boot
	agent   *agent
}

// Start creates a machine and boots it. It blocks until the machine executes commands and has its
// addresses, which is before all of its units have started. If the machine does not boot until ctx
// ends, or its kernel panics, Start ends it and returns an error with the end of the console.
func Start(ctx context.Context, l *lab.Lab, o Options) (_ *Machine, err error) {
	m := &Machine{Name: o.Name, opts: o, lab: l, Dir: filepath.Join(l.Dir, o.Name)}
	if m.opts.Memory == 0 {
		m.opts.Memory = 512
	}
	if m.opts.Processors == 0 {
		m.opts.Processors = 1
	}
	image, err := FindImage()
	if err != nil {
		return nil, err
	}
	if m.kernel, err = findKernel(o.Kernel); err != nil {
		return nil, err
	}
	if err := os.Mkdir(m.Dir, 0o755); err != nil {
		return nil, err
	}
	if m.Port, err = l.AddPort(ctx, o.Name); err != nil {
		return nil, err
	}
	for i := range o.Cards {
		card, err := l.AddCard(ctx, fmt.Sprintf("%s-%d", o.Name, i+1))
		if err != nil {
			return nil, err
		}
		m.Cards = append(m.Cards, card)
	}
	for _, p := range m.Port.Prefixes {
		m.Addrs = append(m.Addrs, p.Addr())
	}
	if _, err := l.Switch.Exec(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", image, m.disk()); err != nil {
		return nil, err
	}
	if err := m.writeFiles(ctx); err != nil {
		return nil, err
	}
	m.agent = &agent{path: filepath.Join(m.Dir, "agent.sock")}
	return m, m.Boot(ctx)
}

// Boot starts a machine that is off, after Kill or PowerOff. It blocks like Start.
func (m *Machine) Boot(ctx context.Context) error {
	if m.process != nil && m.process.IsRunning() {
		return fmt.Errorf("%s is running already", m.Name)
	}
	m.agent.close()
	var err error
	if m.process, err = m.lab.Switch.Start(m.command()...); err != nil {
		return err
	}
	err = m.process.WaitFor(ctx, m.Name+" to boot", m.agent.ping)
	for again := 0; again < 2 && err != nil && ctx.Err() == nil && m.process.IsRunning(); again++ {
		// A machine beside many others may take longer than the limit of WaitFor.
		err = m.process.WaitFor(ctx, m.Name+" to boot", m.agent.ping)
	}
	if err != nil {
		return errors.Join(m.withConsole(err), m.Kill())
	}
	if _, err := m.Run(ctx, "/lib/systemd/systemd-networkd-wait-online", "--interface=eth0"); err != nil {
		return errors.Join(err, m.Kill())
	}
	return nil
}

// Run executes a program in the machine as root and returns its standard output, even with an
// error. The error then contains the program's standard error. If ctx ends first, the program is
// killed.
func (m *Machine) Run(ctx context.Context, command ...string) (string, error) {
	return m.run(ctx, nil, command...)
}

// ReadFile returns the content of a file.
func (m *Machine) ReadFile(ctx context.Context, path string) (string, error) {
	return m.Run(ctx, "cat", "--", path)
}

// WriteFile writes a file with mode 0644 and the directories that it needs. The file keeps its mode
// and owner if it exists.
func (m *Machine) WriteFile(ctx context.Context, path, content string) error {
	_, err := m.run(ctx, []byte(content), "sh", "-euc", `mkdir -p "$(dirname "$1")"; cat >"$1"`, "sh", path)
	return err
}

func (m *Machine) run(ctx context.Context, input []byte, command ...string) (string, error) {
	r, err := m.agent.exec(ctx, input, command...)
	if err == nil && r.code != 0 {
		err = fmt.Errorf("%w: %s", &ExitError{Code: r.code}, strings.TrimSpace(r.stderr))
	}
	if err == nil {
		return r.stdout, nil
	}
	err = fmt.Errorf("%s: %s: %w", m.Name, strings.Join(command, " "), err)
	var exit *ExitError
	if !errors.As(err, &exit) {
		err = m.withConsole(err)
	}
	return r.stdout, err
}

// An ExitError is the error of a program in a machine that ran and did not succeed.
type ExitError struct {
	Code int // the exit code, or -1 if a signal ended it
}

func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// Reboot reboots the machine in an orderly way, and blocks like Start.
func (m *Machine) Reboot(ctx context.Context) error {
	if err := m.PowerOff(ctx); err != nil {
		return err
	}
	return m.Boot(ctx)
}

// PowerOff shuts the machine down in an orderly way and waits until it is off.
func (m *Machine) PowerOff(ctx context.Context) error {
	// The answer may not arrive: the agent ends too.
	if err := m.agent.start(ctx, "systemctl", "--no-block", "poweroff"); err != nil && m.process.IsRunning() {
		return m.withConsole(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := m.process.Wait(ctx); err != nil {
		return errors.Join(m.withConsole(fmt.Errorf("shut down %s: %w", m.Name, err)), m.Kill())
	}
	return nil
}

// Kill ends the machine as if its power failed. What programs have not written to the disk is lost.
func (m *Machine) Kill() error {
	m.agent.close()
	if m.process == nil {
		return nil
	}
	m.process.Kill()
	return nil
}

// Pid returns the process id of QEMU.
func (m *Machine) Pid() int { return m.process.Pid() }

// Console returns what the machine has printed on its console since the first boot: the messages of
// the kernel and of systemd.
func (m *Machine) Console() string {
	text, err := os.ReadFile(filepath.Join(m.Dir, "console.log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// ConsoleTail returns the last lines of the console, for error messages.
func (m *Machine) ConsoleTail(lines int) string {
	text := strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, m.Console())
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func (m *Machine) withConsole(err error) error {
	return fmt.Errorf("%w; the end of the console of %s:\n%s", err, m.Name, m.ConsoleTail(40))
}

// disk is the path of what the machine has written.
func (m *Machine) disk() string { return filepath.Join(m.Dir, "disk.qcow2") }

// files is the path of the disk that the machine mounts on /mnt.
func (m *Machine) files() string { return filepath.Join(m.Dir, "files.img") }

// command returns the command line of QEMU.
func (m *Machine) command() []string {
	parameters := append([]string{
		"console=ttyS0", "net.ifnames=0",
		"panic=-1", // a panic ends QEMU, because of -no-reboot
		"quiet", "loglevel=4", "systemd.show_status=1",
		"mitigations=off", "apparmor=0", "audit=0", // they cost time only
		"systemd.mask=systemd-binfmt.service", "systemd.mask=proc-sys-fs-binfmt_misc.automount", // the same
	}, m.opts.Parameters...)
	if !m.opts.Shell {
		parameters = append([]string{"systemd.mask=serial-getty@ttyS0.service"}, parameters...)
	}
	// With a thread for each processor, one of them may execute an instruction while another one
	// patches it, as Linux does with its static keys: QEMU 7.2 then raises an invalid trap, and the
	// kernel panics.
	threads := "multi"
	if m.opts.Processors > 1 {
		threads = "single"
	}
	command := []string{
		"qemu-system-x86_64", "-machine", "q35",
		// Not KVM, which machines that are virtual themselves have but may not support completely.
		// Of the processors that QEMU emulates, this one has few features that only cost time. Without cmpxchg16b, because
		// QEMU 7.2 emulates it wrongly at times: the kernel's allocator went on with broken flags, and panicked. Without
		// svm, which makes the kernel load KVM.
		"-accel", "tcg,thread=" + threads, "-cpu", "qemu64,-cx16,-svm",
		"-smp", strconv.Itoa(m.opts.Processors), "-m", strconv.Itoa(m.opts.Memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", m.kernel.path("vmlinuz"), "-initrd", m.kernel.path("initrd"), "-append", strings.Join(parameters, " "),
		"-chardev", "socket,id=console,server=on,wait=off,logappend=on,path=" + filepath.Join(m.Dir, "console.sock") +
			",logfile=" + filepath.Join(m.Dir, "console.log"),
		"-serial", "chardev:console",
		"-drive", "if=virtio,format=qcow2,file=" + m.disk(),
		"-drive", "if=virtio,format=raw,readonly=on,file=" + m.kernel.path("modules.img"),
		"-drive", "if=virtio,format=raw,readonly=on,file=" + m.files(),
		"-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
		"-chardev", "socket,id=agent,server=on,wait=off,path=" + m.agent.path,
		"-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
	}
	for i, port := range append([]*lab.Port{m.Port}, m.Cards...) {
		command = append(command,
			"-netdev", fmt.Sprintf("tap,id=link%d,script=no,downscript=no,ifname=%s", i, port.Device),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=link%d,mac=%s,host_mtu=%d", i, m.mac(i), port.MTU))
	}
	return command
}

// mac is the hardware address of a network card, derived from the machine's address.
func (m *Machine) mac(card int) string {
	return fmt.Sprintf("52:54:00:00:%02x:%02x", card+2, m.Addrs[0].As4()[3])
}

// writeFiles creates the disk with the machine's files. The folder root is copied into the
// machine's root file system at the first boot.
func (m *Machine) writeFiles(ctx context.Context) error {
	dir := filepath.Join(m.Dir, "files")
	id := make([]byte, 16)
	rand.Read(id) // never fails
	network := "[Match]\nName=eth0\n\n[Network]\nIPv6AcceptRA=no\nIPv6DuplicateAddressDetection=0\n"
	for i, p := range m.Port.Prefixes {
		network += fmt.Sprintf("Address=%s\nGateway=%s\n", p, m.Port.Gateways[i])
	}
	for path, text := range map[string]string{
		"etc/hostname":                     m.Name + "\n",
		"etc/hosts":                        "127.0.0.1 localhost\n127.0.1.1 " + m.Name + "\n",
		"etc/machine-id":                   hex.EncodeToString(id) + "\n",
		"etc/systemd/network/link.network": network,
	} {
		path = filepath.Join(dir, "root", path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	size := int64(4 << 20)
	for name, source := range m.opts.Files {
		info, err := os.Stat(source)
		if err != nil {
			return err
		}
		size += info.Size()
		path := filepath.Join(dir, filepath.Clean("/"+name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		// A link where that is possible.
		if _, err := m.lab.Switch.Exec(ctx, "sh", "-c", `cp --link "$1" "$2" 2>/dev/null || cp "$1" "$2"`, "sh", source, path); err != nil {
			return err
		}
	}
	_, err := m.lab.Switch.Exec(ctx, "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal,^metadata_csum,^64bit",
		"-d", dir, m.files(), strconv.FormatInt(size*11/10>>20+1, 10)+"M")
	return errors.Join(err, os.RemoveAll(dir))
}
