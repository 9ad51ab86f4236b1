package backend

import "errors"

// What a host lacks, or has too much, for a backend to work on it. Backends wrap
// these; errors of the kernel, such as EPERM and EADDRINUSE, they wrap as they
// are.
var (
	// ErrForeignDevice: the device of the network's name was not made by leno.
	// It is never changed nor removed.
	ErrForeignDevice = errors.New("is not leno's")
	// ErrForeignRoute: another program's route to one of our destinations is in the
	// way, which says EEXIST. It is never changed nor removed.
	ErrForeignRoute = errors.New("a route to it that is not leno's is there")
	// ErrNoSuchKind: the kernel knows no devices of the kind, which says
	// EOPNOTSUPP.
	ErrNoSuchKind = errors.New("the kernel has no such devices")
)
