package kernel

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend/reconcile"
)

// Addresses returns the table of a link's addresses, except link-local IPv6 ones, which are the
// kernel's. IPv6 addresses are added without duplicate detection: no other host can have an address
// from our subnet, and the address would be unusable until the detection ended.
func (h *Handle) Addresses(link int) reconcile.Table[netip.Prefix, Address] {
	return &addresses{h, link}
}

type addresses struct {
	h    *Handle
	link int
}

func (t *addresses) List(ctx context.Context) (map[netip.Prefix]Address, error) {
	return listing(ctx, t.list)
}

func (t *addresses) list() (map[netip.Prefix]Address, error) {
	found, err := t.h.nl.AddrList(indexed(t.link), netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	entries := map[netip.Prefix]Address{}
	for _, a := range found {
		addr := ToAddr(a.IP)
		if !addr.IsValid() || addr.Is6() && addr.IsLinkLocalUnicast() {
			continue
		}
		bits, _ := a.Mask.Size()
		entries[netip.PrefixFrom(addr, bits)] = Address{}
	}
	return entries, err
}

func (t *addresses) Write(ctx context.Context, changes []reconcile.Change[netip.Prefix, Address]) []error {
	errs := make([]error, len(changes))
	for i, c := range changes {
		if errs[i] = ctx.Err(); errs[i] != nil {
			continue
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{
			IP:   c.Key.Addr().AsSlice(),
			Mask: net.CIDRMask(c.Key.Bits(), c.Key.Addr().BitLen()),
		}}
		if c.New == nil {
			if err := t.h.nl.AddrDel(indexed(t.link), addr); !errors.Is(err, unix.EADDRNOTAVAIL) {
				errs[i] = err
			}
			continue
		}
		if c.Key.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		errs[i] = t.h.nl.AddrReplace(indexed(t.link), addr)
	}
	return errs
}
