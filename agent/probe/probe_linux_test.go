package probe

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// healthy holds the report of a probe, by backend, of a healthy network.
var healthy = map[string]string{
	"vxlan": `
overlay 10.5.2.0 2/2 2/2 largest 1450 of 1450, echo reply
overlay fd00:5:0:2:: 2/2 2/2 largest 1450 of 1450, echo reply
underlay 192.0.2.2 2/2 2/2 largest 1500 of 1500, echo reply`,
	"udp": `
overlay 10.5.2.0 2/2 2/2 largest 1472 of 1472, echo reply
overlay fd00:5:0:2:: 2/2 2/2 largest 1472 of 1472, echo reply
underlay 192.0.2.2 2/2 2/2 largest 1500 of 1500, echo reply`,
	"wireguard": `
overlay 10.5.2.0 2/2 2/2 largest 1440 of 1440, echo reply
overlay fd00:5:0:2:: 2/2 2/2 largest 1440 of 1440, echo reply
underlay 192.0.2.2 2/2 2/2 largest 1500 of 1500, echo reply`,
	// Before containers have a bridge, the peer's kernel does not have the address, and reports that once.
	"host-gw": `
overlay 10.5.2.1 0/0 1/1 largest 1500 of 1500, host unreachable from 192.0.2.2
overlay fd00:5:0:2::1 0/0 1/1 largest 1500 of 1500, no route from 2001:db8::2
underlay 192.0.2.2 2/2 2/2 largest 1500 of 1500, echo reply
underlay 2001:db8::2 2/2 2/2 largest 1500 of 1500, echo reply`,
}

func TestHealthy(t *testing.T) {
	t.Parallel()
	for kind, want := range healthy {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind)
			for range 3 { // even when the kernel sends no more errors for a while
				r := patientRequest()
				if kind == "host-gw" {
					r = briefRequest()
					r.TimeoutMS = 500 // three of them, before the kernel sends the next error after two seconds
				}
				checkProbe(t, a.probe(b, r), true, want)
			}
		})
	}
}

// TestWithoutCapability checks that the error names the missing right.
func TestWithoutCapability(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread has fewer rights from here on
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var rights [2]unix.CapUserData
		err := errors.Join(unix.Setns(ns.Fd(), unix.CLONE_NEWNET), unix.Capget(&header, &rights[0]))
		rights[0].Effective &^= 1 << unix.CAP_NET_RAW
		if err = errors.Join(err, unix.Capset(&header, &rights[0])); err == nil {
			_, err = open(context.Background())
		}
		failed <- err
	}()
	if err := <-failed; !errors.Is(err, ErrNoCapability) {
		t.Errorf("%v, which does not name the right", err)
	}
}
