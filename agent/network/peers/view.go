package peers

import "github.com/lenonet/leno/registry"

// A View is what a datapath is made from. It is immutable. After a restart it is at first only as complete as the files
// of the earlier process.
type View struct {
	Network registry.Network
	Own     registry.Lease   // with at least slot, subnets and node id
	Leases  []registry.Lease // at least those of the other hosts
}
