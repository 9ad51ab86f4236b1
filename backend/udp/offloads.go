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

// lacking returns for users which of the wanted offloads the kernel does not provide, and the version of Linux that
// does.
func (o offloads) lacking(want offloads) []string {
	var out []string
	for _, f := range []struct {
		want, have bool
		note       string
	}{
		{want.tso, o.tso, "the kernel has no segmentation offload for TCP on TUN devices"},
		{want.uso, o.uso, "the kernel has no segmentation offload for UDP on TUN devices, which Linux 6.2 and later have"},
		{want.segment, o.segment, "the kernel has no UDP_SEGMENT, which Linux 4.18 and later have"},
		{want.gro, o.gro, "the kernel has no UDP_GRO, which Linux 5.0 and later have"},
	} {
		if f.want && !f.have {
			out = append(out, f.note)
		}
	}
	return out
}

// allOffloads are tried at every start.
var allOffloads = offloads{tso: true, uso: true, segment: true, gro: true, steer: true}
