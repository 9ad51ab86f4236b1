package kernel

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend/reconcile"
)

// Neighbours returns the table of the permanent neighbours on a link of ours, for both families.
func (h *Handle) Neighbours(link int) reconcile.Table[NeighbourKey, MAC] {
	return &neighbours{h, link}
}

type neighbours struct {
	h    *Handle
	link int
}

func (t *neighbours) List(ctx context.Context) (map[NeighbourKey]MAC, error) {
	return listing(ctx, t.list)
}

func (t *neighbours) list() (map[NeighbourKey]MAC, error) {
	entries := make(map[NeighbourKey]MAC, t.h.neighbours)
	var interrupted error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		found, err := t.h.nl.NeighList(t.link, family)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			interrupted = err
		} else if err != nil {
			return nil, err
		}
		for _, n := range found {
			addr := ToAddr(n.IP)
			if n.State&unix.NUD_PERMANENT == 0 || !addr.IsValid() {
				continue
			}
			var mac MAC // stays zero, unlike any wanted one, if the address has another length
			if len(n.HardwareAddr) == len(mac) {
				mac = MAC(n.HardwareAddr)
			}
			entries[NeighbourKey{addr}] = mac
		}
	}
	t.h.neighbours = len(entries)
	return entries, interrupted
}

func (t *neighbours) Write(ctx context.Context, changes []reconcile.Change[NeighbourKey, MAC]) []error {
	requests := make([]*nl.NetlinkRequest, 0, len(changes))
	for _, c := range changes {
		family := uint8(unix.AF_INET6)
		if c.Key.Addr.Is4() {
			family = unix.AF_INET
		}
		msg := &netlink.Ndmsg{Family: family, Index: uint32(t.link), State: unix.NUD_PERMANENT}
		req := neighRequest(c.New == nil, msg)
		req.AddData(nl.NewRtAttr(netlink.NDA_DST, c.Key.Addr.AsSlice()))
		if c.New != nil {
			req.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, c.New[:]))
		}
		requests = append(requests, req)
	}
	return writeNeighbours(ctx, t.h.batch, requests)
}

// neighRequest returns a request that replaces any existing entry. On a link of ours, an entry that
// was learned or has failed gives way to the wanted one.
func neighRequest(del bool, msg *netlink.Ndmsg) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	if del {
		req = nl.NewNetlinkRequest(unix.RTM_DELNEIGH, 0)
	}
	req.AddData(msg)
	return req
}

// writeNeighbours makes requests, and accepts that an entry to delete is already gone.
func writeNeighbours(ctx context.Context, b *batch, requests []*nl.NetlinkRequest) []error {
	errs := b.write(ctx, requests)
	for i, err := range errs {
		if requests[i].Type == unix.RTM_DELNEIGH && errors.Is(err, unix.ENOENT) {
			errs[i] = nil
		}
	}
	return errs
}

// FDB returns the forwarding database of one VXLAN link of ours. On a link without learning, every
// entry is ours or a leftover.
func (h *Handle) FDB(link int) reconcile.Table[FDBKey, FDB] { return &fdb{h, link} }

type fdb struct {
	h    *Handle
	link int
}

func (t *fdb) List(ctx context.Context) (map[FDBKey]FDB, error) { return listing(ctx, t.list) }

func (t *fdb) list() (map[FDBKey]FDB, error) {
	entries := make(map[FDBKey]FDB, t.h.fdb)
	found, err := t.h.nl.NeighList(t.link, unix.AF_BRIDGE)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	for _, n := range found {
		// Entries without the self flag are in the database of a bridge that the link is a port of.
		if n.Flags&netlink.NTF_SELF == 0 || len(n.HardwareAddr) != len(MAC{}) {
			continue
		}
		key := unused(entries, FDBKey{MAC: MAC(n.HardwareAddr)}, func(k *FDBKey) { k.Nth++ })
		var extra phrase
		extra.add(n.State&unix.NUD_PERMANENT == 0, "state %d", n.State)
		extra.add(n.VNI != 0, "vni %d", n.VNI)
		entries[key] = FDB{Dst: ToAddr(n.IP), Extra: extra.String()}
	}
	t.h.fdb = len(entries)
	return entries, err
}

func (t *fdb) Write(ctx context.Context, changes []reconcile.Change[FDBKey, FDB]) []error {
	requests := make([]*nl.NetlinkRequest, 0, len(changes))
	for _, c := range changes {
		msg := &netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(t.link), State: unix.NUD_PERMANENT,
			Flags: netlink.NTF_SELF}
		req := neighRequest(c.New == nil, msg)
		req.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, c.Key.MAC[:]))
		dst := c.New
		if dst == nil {
			dst = c.Old
		}
		if dst.Dst.IsValid() {
			req.AddData(nl.NewRtAttr(netlink.NDA_DST, dst.Dst.AsSlice()))
		}
		requests = append(requests, req)
	}
	return writeNeighbours(ctx, t.h.batch, requests)
}
