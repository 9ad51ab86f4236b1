package firewall

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/firewall/netfilter"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// When the kernel's answers do not fit into the socket's buffer, the listing tells whether the write was done.
func TestNFTAnswersLost(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	fw := newNFTables(hclog.NewNullLogger())
	opened := 0
	fw.open = func() (*netfilter.Conn, error) {
		conn, err := netfilter.Open()
		if opened++; opened == 2 && err == nil { // the socket that writes
			err = conn.Socket.SetReadBuffer(1)
		}
		return conn, err
	}
	ns.Do(func() {
		if written, err := fw.apply(t.Context(), random(two())); err != nil || len(written) != 1 {
			t.Errorf("got %q, %v", written, err)
		}
	})
	if opened != 3 {
		t.Errorf("%d sockets were opened: no answer was lost", opened)
	}
	if got := nftApply(t, ns, random(two())); got != 0 {
		t.Errorf("a second Apply made %d transactions", got)
	}
}

// A program that writes without a pause does not keep our rules from being repaired, nor causes unnecessary writes.
func TestNFTRestlessOther(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	ctx, stop := context.WithCancel(t.Context())
	var other sync.WaitGroup
	written := 0
	other.Go(func() {
		ns.Do(func() {
			conn, err := netfilter.Open()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.CloseLasting()
			table := &nftables.Table{Name: "other", Family: nftables.TableFamilyINet}
			for ; ctx.Err() == nil && err == nil; written++ {
				conn.AddTable(table)
				err = conn.Flush()
				conn.DelTable(table)
				err = errors.Join(err, conn.Flush(), conn.Socket.SetDeadline(time.Now().Add(10*time.Second)))
			}
			if err != nil {
				t.Error(err)
			}
		})
	})
	ns.Do(func() {
		for i := range 20 {
			want := random(two()[i/10:])
			report, err := newNFTables(hclog.NewNullLogger()).apply(t.Context(), want)
			if err != nil || len(report) > 0 != (i%10 == 0) {
				t.Errorf("step %d: %q, %v", i, report, err)
			}
		}
	})
	stop()
	other.Wait()
	t.Logf("%d transactions of the other", 2*written)
}

func TestNFTCannot(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		opens int // number of sockets that can be opened before the error
		err   error
		want  error
		text  string
	}{
		{"no netfilter", 0, unix.EPROTONOSUPPORT, ErrNotInstalled, "module nf_tables"},
		{"no nf_tables", 0, unix.EINVAL, ErrNotInstalled, "module nf_tables"},
		{"no rights to list", 0, unix.EPERM, unix.EPERM, "CAP_NET_ADMIN"},
		{"no type nat", 1, unix.ENOENT, ErrNotInstalled, "Linux 5.2"},
		{"an old kernel", 1, unix.EOPNOTSUPP, ErrNotInstalled, "Linux 5.2"},
		{"no rights to write", 1, unix.EPERM, unix.EPERM, "CAP_NET_ADMIN"},
		{"busy", 1, unix.EBUSY, unix.EBUSY, "nftables: write table inet leno: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns, fw, opened := nstest.New(t), newNFTables(hclog.NewNullLogger()), 0
			fw.open = func() (*netfilter.Conn, error) {
				if opened++; opened > tt.opens {
					return nil, tt.err
				}
				return netfilter.Open()
			}
			ns.Do(func() {
				written, err := fw.apply(t.Context(), random(two()))
				if len(written) > 0 || !errors.Is(err, tt.want) || !errors.Is(err, tt.err) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("got %q, %v", written, err)
				}
				if written, err := fw.apply(t.Context(), rules{}); len(written) > 0 || err != nil {
					t.Errorf("nothing wanted: got %q, %v", written, err)
				}
			})
		})
	}
}

// TestNFTNoRights checks the kernel's own answer to a thread without rights.
func TestNFTNoRights(t *testing.T) {
	t.Parallel()
	ns, done := nstest.New(t), make(chan error)
	go func() {
		// The thread stays locked, because it has given up its rights.
		runtime.LockOSThread()
		done <- nftWithoutRights(t, ns)
	}()
	if err := <-done; !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("got %v", err)
	}
}

func nftWithoutRights(t *testing.T, ns *nstest.NS) error {
	if err := unix.Setns(ns.Fd(), unix.CLONE_NEWNET); err != nil {
		return err
	}
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capset(&header, &none[0]); err != nil {
		return err
	}
	_, err := newNFTables(hclog.NewNullLogger()).apply(t.Context(), random(two()))
	return err
}
