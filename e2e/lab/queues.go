package lab

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// longQueue is the number of packets that may wait for an agent in the queue of a TUN device. The kernel's default is 500.
const longQueue = 20000

// LengthenQueues gives each TUN device that is created on a host from now on a long queue, for tests that count lost
// packets. An agent that forwards packets in its process may get no CPU time for seconds on a busy machine. What its queue
// has no room for is lost, which is no fault of the agent. Measurements run without it.
func (l *Lab) LengthenQueues() error {
	for _, h := range l.Hosts {
		stop, err := h.lengthenQueues()
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.watchers = append(l.watchers, stop)
		l.mu.Unlock()
	}
	return nil
}

// lengthenQueues does that on one host until the function that it returns is called.
func (h *Host) lengthenQueues() (stop func(), err error) {
	links, done := make(chan netlink.LinkUpdate), make(chan struct{})
	var handle *netlink.Handle
	err = h.Do(func() error {
		if handle, err = netlink.NewHandle(); err != nil {
			return err
		}
		return netlink.LinkSubscribe(links, done)
	})
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer handle.Close()
		for link := range links {
			if attrs := link.Attrs(); link.Type() != (&netlink.Tuntap{}).Type() || attrs.TxQLen == longQueue {
				continue
			}
			err := handle.LinkSetTxQLen(link.Link, longQueue)
			if err != nil && !errors.Is(err, unix.ENODEV) { // it is gone again
				h.lab.note("# " + h.Name + ": the queue of " + link.Attrs().Name + ": " + err.Error())
			}
		}
	}()
	return func() { close(done); <-ended }, nil
}
