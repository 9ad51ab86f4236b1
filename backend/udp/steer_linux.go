package udp

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// errNoBPF is what an agent with no more rights than it needs is told.
var errNoBPF = errors.New("no right to load BPF programs: CAP_BPF")

// steer makes the kernel choose a packet's queue by what does not change within
// a flow: the addresses, and the ports of TCP that is not fragmented. Left to
// itself it moves a flow to whatever queue its answers were last written to,
// while packets still wait in the one before (tun_flow_update, Linux 3.8 and
// later), and they overtake each other. Datagrams go by addresses alone: parts
// of a fragmented one have no ports and must not overtake the others.
//
// It needs Linux 4.16 and the right to load BPF programs: CAP_BPF, or
// CAP_SYS_ADMIN before Linux 5.8. The device keeps the program.
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

// steering is the program: R8 collects, and a multiplication spreads it (Knuth,
// volume 3, section 6.4). The kernel takes the result modulo the queues. A
// packet that ends too early makes it return 0.
func steering() asm.Instructions {
	mix := func(load asm.Instruction) asm.Instructions {
		return asm.Instructions{load, asm.Xor.Reg(asm.R8, asm.R0)}
	}
	program := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1), // where the loads expect the packet
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
		asm.LoadAbs(6, asm.Half), // flags and offset: not DF, the others
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
		asm.LoadAbs(6, asm.Byte), // no extension header in between, so no fragment
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
