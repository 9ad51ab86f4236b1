// Package udp implements the backend that carries packets between hosts in user space. A packet
// that the kernel routes to a TUN device is sent unchanged in a UDP datagram to the peer that owns
// the destination, and back. The wire format is that of flannel's udp backend: the bare IP packet
// is the payload, port 8285.
//
// The package owns the TUN device, the socket, the forwarder between them and the routes of the
// peers' subnets. It does not handle TTLs, ICMP errors and fragments of the inner packets: these
// pass through the routing of both kernels, which treat the two hosts as the two routers they are.
//
// Three things make it fast. A system call moves up to 64 KiB, as super packets at the device
// (package offload) and as many datagrams in one message at the socket. There is a lane for each
// CPU: one goroutine with its own queue and socket. Payloads are never copied, and no memory is
// allocated while packets flow. Each feature that a kernel lacks is left out on its own (offloads).
// On the wire every packet is a separate datagram.
//
// Nothing is encrypted. A datagram is accepted only from a peer's public address and advertised
// port, with an inner source in that peer's subnets and an inner destination in this host's.
package udp

// Name is the backend's name in networks and leases.
const Name = "udp"
