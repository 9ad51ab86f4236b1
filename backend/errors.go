package backend

import "errors"

// Errors for a host that lacks something a backend needs, or has something in its way. Backends
// wrap these; kernel errors such as EPERM and EADDRINUSE are wrapped as they are.
var (
	// ErrForeignDevice: the device with the network's name was not made by leno. It is never
	// changed or removed.
	ErrForeignDevice = errors.New("is not leno's")
	// ErrForeignRoute: another program's route to one of our destinations is in the way, which the
	// kernel reports as EEXIST. It is never changed or removed.
	ErrForeignRoute = errors.New("a route to it that is not leno's is there")
	// ErrPortOfDevice: a device of the kernel has the network's UDP port, so there is no program to end. It comes with
	// EADDRINUSE.
	ErrPortOfDevice = errors.New("is used by the device")

	// ErrDetour: a routing rule of another program decides about packets before the kernel uses leno's route or the main
	// table. The error names a command that prevents that.
	ErrDetour = errors.New("a routing rule that is not leno's takes precedence")
	// ErrNoSuchKind: the kernel does not support devices of this kind, which it reports as
	// EOPNOTSUPP.
	ErrNoSuchKind = errors.New("the kernel has no such devices")
	// ErrUncarried: the host carries no packets of a pool because it lacks what the pool's family needs.
	ErrUncarried = errors.New("pool is not carried")
	// ErrNoHandshake: packets are sent to a peer that has not agreed on session keys with this host, so it cannot read
	// them.
	ErrNoHandshake = errors.New("no handshake")
)
