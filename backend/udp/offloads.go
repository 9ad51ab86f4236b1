package udp

// offloads lists what the kernel can do for the forwarder. Each is used independently of the
// others.
type offloads struct {
	tso     bool // the device accepts and delivers TCP super packets and partial checksums
	uso     bool // the same for UDP; Linux 6.2
	segment bool // the socket accepts many datagrams in one message; UDP_SEGMENT, Linux 4.18
	gro     bool // the socket delivers many datagrams in one message; UDP_GRO, Linux 5.0
	steer   bool // the device has several queues and keeps flows apart; BPF, Linux 4.16
}

// allOffloads are tried at every start.
var allOffloads = offloads{tso: true, uso: true, segment: true, gro: true, steer: true}
