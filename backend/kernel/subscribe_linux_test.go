package kernel

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSubscribeRefused checks that a subscription that is refused closes its descriptor once.
func TestSubscribeRefused(t *testing.T) {
	refused := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends without its privileges
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			refused <- err
			return
		}
		_, err := Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
		refused <- err
	}()
	if err := <-refused; !errors.Is(err, unix.EPERM) {
		t.Fatalf("%v", err)
	}
	// The next file opened gets the same number.
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(unix.Close(fds[0]), unix.Close(fds[1])); err != nil {
			t.Error(err)
		}
	}()
	collected := make(chan struct{})
	runtime.AddCleanup(new(os.File), func(struct{}) { close(collected) }, struct{}{})
	for {
		runtime.GC()
		select {
		case <-collected:
		case <-time.After(10 * time.Millisecond):
			continue
		}
		break
	}
	for range 10 { // cleanups run one after the other, in no guaranteed order
		runtime.GC()
		if _, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFD, 0); err != nil {
			t.Fatalf("the descriptor that came after it was closed: %v", err)
		}
		<-time.After(5 * time.Millisecond)
	}
}
