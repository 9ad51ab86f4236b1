package firewall

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend/kernel"
)

// watch is notified of every transaction of nf_tables, by whichever program, and so of iptables-nft too. It does not
// ask for the contents: changes by others may affect our rules, and checking is cheap.
type watch struct {
	socket *nl.NetlinkSocket
}

// Watch blocks until ctx ends. It calls changed after each change of nf_tables in the calling thread's network
// namespace, including those of this process, and once at the beginning for earlier changes. Changes of
// iptables-legacy are not announced, see Touched. Watch may run concurrently with the other methods. It needs
// CAP_NET_ADMIN.
func (f *Firewall) Watch(ctx context.Context, changed func()) error {
	w, err := openWatch()
	if err != nil {
		return err
	}
	changed()
	return w.run(ctx, changed)
}

// openWatch subscribes: the watch receives every change after it returned.
func openWatch() (*watch, error) {
	socket, err := kernel.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, fmt.Errorf("watch nf_tables: %w", err)
	}
	return &watch{socket}, nil
}

// run reads the kernel's messages until ctx ends, then closes the watch and returns nil. Lost messages count as a
// change.
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
			// The lost messages end with the one that ends their transaction, or with one that is still to come: a
			// check a moment later finds the change.
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
