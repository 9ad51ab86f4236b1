package udp

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// errNoBPF is reported when an agent runs with minimal privileges.
var errNoBPF = errors.New("the agent may not load BPF programs, for which it needs CAP_BPF and the system call bpf")

// steer makes the kernel choose a packet's queue by what does not change within a flow: the
// addresses, and for unfragmented TCP also the ports. By default the kernel moves a flow to the
// queue its answers were last written to, while packets still wait in the previous queue
// (tun_flow_update, Linux 3.8 and later), and packets overtake each other. Datagrams are steered by
// addresses alone: fragments have no ports and must not overtake the other packets.
//
// It needs Linux 4.16 and the privilege to load BPF programs: CAP_BPF, or CAP_SYS_ADMIN before
// Linux 5.8. The device keeps the program.
func steer(fd int) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "leno_steer", Type: ebpf.SocketFilter, License: "MPL-2.0", Instructions: steering(),
	})
	if errors.Is(err, unix.EPERM) {
		return errNoBPF
	}
	if err != nil {
		return fmt.Errorf("load program: %w", err)
	}
	defer program.Close()
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETSTEERINGEBPF, program.FD()); err != nil {
		return fmt.Errorf("steer tun queues: %w", err)
	}
	return nil
}

// steering returns the program. R8 collects the values, and a multiplication spreads them (Knuth,
// volume 3, section 6.4). The kernel takes the result modulo the number of queues. For a packet
// that ends too early the program returns 0.
func steering() asm.Instructions {
	mix := func(load asm.Instruction) asm.Instructions {
		return asm.Instructions{load, asm.Xor.Reg(asm.R8, asm.R0)}
	}
	program := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1), // the loads expect the packet here
		asm.Mov.Imm(asm.R8, 0),
		asm.LoadAbs(0, asm.Byte),
		asm.Mov.Reg(asm.R9, asm.R0),
		asm.RSh.Imm(asm.R0, 4),
		asm.JEq.Imm(asm.R0, 6, "v6"),
	}
	program = append(program, mix(asm.LoadAbs(12, asm.Word))...)
	program = append(program, mix(asm.LoadAbs(16, asm.Word))...)
	program = append(program,
		asm.LoadAbs(9, asm.Byte),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_TCP, "out"),
		asm.LoadAbs(6, asm.Half), // fragment flags and offset, without DF
		asm.And.Imm(asm.R0, 0x3fff),
		asm.JNE.Imm(asm.R0, 0, "out"),
		asm.And.Imm(asm.R9, 0xf),
		asm.LSh.Imm(asm.R9, 2),
	)
	program = append(program, mix(asm.LoadInd(asm.R0, asm.R9, 0, asm.Word))...)
	program = append(program, asm.Ja.Label("out"))

	addresses := asm.Instructions{}
	for at := int32(8); at < ipv6HeaderLen; at += 4 {
		addresses = append(addresses, mix(asm.LoadAbs(at, asm.Word))...)
	}
	addresses[0] = addresses[0].WithSymbol("v6")
	program = append(program, addresses...)
	program = append(program,
		asm.LoadAbs(6, asm.Byte), // no extension header in between, so not a fragment
		asm.JNE.Imm(asm.R0, unix.IPPROTO_TCP, "out"),
	)
	program = append(program, mix(asm.LoadAbs(ipv6HeaderLen, asm.Word))...)
	return append(program,
		asm.Mul.Imm32(asm.R8, -1640531535).WithSymbol("out"), // 2^32 / the golden ratio
		asm.Mov.Reg32(asm.R0, asm.R8),
		asm.RSh.Imm32(asm.R0, 16),
		asm.Return(),
	)
}
