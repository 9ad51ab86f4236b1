// Package wireguard implements the backend that carries packets encrypted, in WireGuard. It uses the kernel's WireGuard
// where there is one, and WireGuard in this process (golang.zx2c4.com/wireguard) otherwise. Everything above the device
// is the same: device is the seam, and configurations have the types of wgctrl.
//
// The package owns the network's device, the device's peers, and the routes with our protocol inside the network's
// pools. One device carries IPv4 and IPv6, and reaches each peer over IPv4 or IPv6.
//
// A peer's allowed IPs are exactly its subnets. WireGuard drops a packet whose inner source is not in the subnets of
// the peer that encrypted it, so no host can impersonate another. The store decides which hosts take part: a program
// that can write leases there can add a peer.
//
// The kernel's device forwards without this process. For WireGuard in this process, the TUN device is persistent: it
// keeps its addresses and routes while no process is attached, and the kernel drops the packets. The process that takes
// it over has no sessions, and the peers do not know that. So it starts a handshake with every peer at once.
package wireguard

// Name is the backend's name in networks and leases.
const Name = "wireguard"
