package lab

import (
	"context"
	"fmt"
	"net/netip"
)

// The kinds of stores.
const (
	StoreConsul = "consul"
	StoreEtcd   = "etcd"
)

// A Store is one server of the store: a *Consul or an *Etcd. Its data survives Stop, Kill and Start.
// Start, Stop and Kill must be called by one goroutine at a time.
type Store interface {
	// About returns the server's place in the lab.
	About() *Node
	// Address returns the server's address for clients inside the lab, "192.0.2.1:2379".
	Address() string
	// Start starts the server, again or for the first time, and blocks until it answers a consistent
	// read, which requires a leader.
	Start(ctx context.Context) error
	// Stop ends the server with SIGTERM.
	Stop(ctx context.Context) error
	// Kill ends the server with SIGKILL.
	Kill() error
	// Cut disconnects the server from the network without a carrier change. Mend undoes that.
	Cut(ctx context.Context) error
	Mend(ctx context.Context) error
	// Process returns the running process, or the last one that ran, or nil before Start.
	Process() *Process

	launch() error
	await(ctx context.Context) error
}

var (
	_ Store = (*Consul)(nil)
	_ Store = (*Etcd)(nil)
)

// A Node is the place of a program of the store in the lab: a namespace and the process in it.
type Node struct {
	Name      string     // "consul-1", "etcd-1", or the name of the host
	Addr      netip.Addr // in the network between hosts
	Namespace *Namespace

	program string // StoreConsul or StoreEtcd
	lab     *Lab
	process *Process
}

// findStore checks Store and finds the binary.
func (o *Options) findStore() (err error) {
	switch {
	case o.Store == StoreEtcd && o.Etcd == "":
		o.Etcd, err = FindEtcd()
	case o.Store == StoreEtcd:
	case o.Store != "" && o.Store != StoreConsul:
		return fmt.Errorf("%q is not a store: use %q or %q", o.Store, StoreConsul, StoreEtcd)
	case o.Consul == "":
		o.Consul, err = FindConsul()
	}
	return err
}

// serverName returns the name of the server with the given index: "consul" for the only one, or
// "consul-1".
func (o *Options) serverName(i int) string {
	kind := StoreConsul
	if o.Store == StoreEtcd {
		kind = StoreEtcd
	}
	if o.Servers == 1 {
		return kind
	}
	return fmt.Sprintf("%s-%d", kind, i+1)
}

// StartAll starts several servers, again or for the first time, and blocks until each has a leader.
// Too few servers to elect a leader wait for each other, so they must be started together.
func StartAll[S Store](ctx context.Context, all []S) error {
	if err := launchAll(all); err != nil {
		return err
	}
	return awaitAll(ctx, all)
}

func launchAll[S Store](all []S) error {
	for _, s := range all {
		if err := s.launch(); err != nil {
			return err
		}
	}
	return nil
}

func awaitAll[S Store](ctx context.Context, all []S) error {
	for _, s := range all {
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// About implements Store.
func (n *Node) About() *Node { return n }

// Stop ends the program with SIGTERM. A server just stops; a Consul client leaves the cluster, which
// deregisters the node and destroys its sessions.
func (n *Node) Stop(ctx context.Context) error {
	if n.process == nil {
		return nil
	}
	n.lab.step("%s on %s: stopping", n.program, n.Name)
	return n.process.Stop(ctx)
}

// Kill ends the program with SIGKILL.
func (n *Node) Kill() error {
	if n.process == nil {
		return nil
	}
	n.lab.step("%s on %s: kill -9", n.program, n.Name)
	n.process.Kill()
	return nil
}

// Cut disconnects the node from the network without a carrier change; Mend connects it again. A
// Consul client shares both with its host.
func (n *Node) Cut(ctx context.Context) error { return n.lab.unplug(ctx, n.Name) }

// Mend undoes Cut.
func (n *Node) Mend(ctx context.Context) error { return n.lab.plug(ctx, n.Name) }

// Process returns the running process, or the last one that ran, or nil before Start.
func (n *Node) Process() *Process { return n.process }

// checkEnded returns an error if the program is running.
func (n *Node) checkEnded() error {
	if n.process != nil && n.process.IsRunning() {
		return fmt.Errorf("%s on %s is running already", n.program, n.Name)
	}
	return nil
}

// started reports to the log that the program is ready, unless err is an error.
func (n *Node) started(err error) error {
	if err == nil {
		n.lab.step("%s on %s: started, pid %d", n.program, n.Name, n.process.Pid())
	}
	return err
}
