package firewall

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend/kernel"
)

// watch hears of every transaction of nf_tables, by whichever program, and so of
// iptables-nft too. It does not ask what was in it: what others change may be in
// the way of ours, and to look is cheap.
type watch struct {
	socket *nl.NetlinkSocket
}

// Watch blocks until ctx ends and calls changed after each change of nf_tables in
// the calling thread's network namespace, those of this process included, and
// once at the beginning for what happened before. Of iptables-legacy nobody
// tells, see Touched. It may run beside the other methods. It wants
// CAP_NET_ADMIN.
func (f *Firewall) Watch(ctx context.Context, changed func()) error {
	w, err := openWatch()
	if err != nil {
		return err
	}
	changed()
	return w.run(ctx, changed)
}

// openWatch subscribes: whatever changes after it returned is told.
func openWatch() (*watch, error) {
	socket, err := kernel.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, fmt.Errorf("watch nf_tables: %w", err)
	}
	return &watch{socket}, nil
}

// run reads the kernel's messages until ctx ends, then closes the watch and
// returns nil. Lost messages count as a change.
func (w *watch) run(ctx context.Context, changed func()) error {
	stop := context.AfterFunc(ctx, w.socket.Close) // makes Receive return
	defer func() {
		if stop() {
			w.socket.Close()
		}
	}()
	for {
		messages, from, err := w.socket.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			// What was lost ends with the message that ends its transaction, or with
			// one that is still to come: a look a moment later finds it.
			changed()
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case err != nil:
			return fmt.Errorf("watch nf_tables: %w", err)
		case from.Pid == nl.PidKernel:
			for _, m := range messages {
				if m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
					changed()
					break
				}
			}
		}
	}
}
