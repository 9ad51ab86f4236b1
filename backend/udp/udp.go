// Package udp is the backend that carries packets between hosts in userspace:
// what the kernel routes to a TUN device goes, as it is, in a UDP datagram to
// the peer that owns the destination, and back. The wire format is that of
// flannel's udp backend: the bare IP packet is the payload, port 8285.
//
// The package owns the TUN device, the socket, the forwarder between them and
// the routes of the peers' subnets. It refuses to know about TTLs, ICMP errors
// and fragments of the inner packets: these pass the routing of both kernels,
// which treat the pair of hosts as the two routers they are.
//
// What makes it fast: a call to the kernel moves up to 64 KiB, as super packets
// at the device (package offload) and as many datagrams in one message at the
// socket; a lane for each CPU, which is one goroutine with a queue and a socket
// of its own; payloads that are never copied and memory that is never allocated
// while packets flow. What a kernel has not got is done without, each alone
// (offloads). On the wire every packet is a datagram of its own.
//
// Nothing is encrypted. A datagram is believed only from a peer's public
// address and advertised port, with an inner source out of that peer's subnets
// and an inner destination out of this host's.
package udp

// Name is the backend's name in networks and leases.
const Name = "udp"
