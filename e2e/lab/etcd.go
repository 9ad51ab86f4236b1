package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// An Etcd is one etcd server. Its data survives Stop, Kill and Start. Start, Stop and Kill must be
// called by one goroutine at a time, as must RestoreEtcd.
type Etcd struct {
	Node

	restores int // how often its data was replaced

	mu     sync.Mutex
	client *clientv3.Client
}

const etcdPort, etcdPeerPort = 2379, 2380

// reconnect makes clients notice soon that a server is back. By default they pause for up to two minutes.
var reconnect = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

func newEtcd(l *Lab, ns *Namespace, name string, i int) *Etcd {
	return &Etcd{Node: Node{Name: name, Addr: serverAddrs(i)[0], Namespace: ns, program: StoreEtcd, lab: l}}
}

// Address returns the address for clients inside the lab, "192.0.2.1:2379".
func (e *Etcd) Address() string { return netip.AddrPortFrom(e.Addr, etcdPort).String() }

func (e *Etcd) clientURL() string { return "http://" + e.Address() }
func (e *Etcd) peerURL() string {
	return "http://" + netip.AddrPortFrom(e.Addr, etcdPeerPort).String()
}

// EtcdEndpoints returns the client URLs of all servers as a list for a configuration:
// ["http://192.0.2.1:2379", "http://192.0.2.2:2379"].
func (l *Lab) EtcdEndpoints() string {
	var out []string
	for _, e := range l.EtcdServers {
		out = append(out, fmt.Sprintf("%q", e.clientURL()))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// cluster returns all servers as etcd's flag has them: "etcd-1=http://192.0.2.1:2380,etcd-2=...".
func (e *Etcd) cluster() string {
	var out []string
	for _, s := range e.lab.EtcdServers {
		out = append(out, s.Name+"="+s.peerURL())
	}
	return strings.Join(out, ",")
}

// Client returns a client for use in this process that connects to this server only. Close closes
// it.
func (e *Etcd) Client() (*clientv3.Client, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.client != nil {
		return e.client, nil
	}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		return e.Namespace.DialContext(ctx, "tcp", address)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{e.clientURL()},
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(dial),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 3 * time.Second}),
		},
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 5 * time.Second,
		Logger:               zap.NewNop(),
	})
	e.client = client
	return client, err
}

func (e *Etcd) closeClient() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.client == nil {
		return nil
	}
	client := e.client
	e.client = nil
	return client.Close()
}

// Start starts the server, again or for the first time, and blocks until it answers a linearizable
// read, which requires a leader.
func (e *Etcd) Start(ctx context.Context) error { return StartAll(ctx, []*Etcd{e}) }

// dir returns the directory of the server's files.
func (e *Etcd) dir() string { return filepath.Join(e.lab.Dir, StoreEtcd, e.Name) }

// data returns the data directory, which is another one after each RestoreEtcd.
func (e *Etcd) data() string { return filepath.Join(e.dir(), fmt.Sprintf("data-%d", e.restores)) }

func (e *Etcd) launch() (err error) {
	if err := e.checkEnded(); err != nil {
		return err
	}
	if err := os.MkdirAll(e.dir(), 0o755); err != nil {
		return err
	}
	// A killed process loses nothing that it wrote, so it needs no fsync.
	e.process, err = e.Namespace.Start(
		e.lab.opts.Etcd,
		"--name="+e.Name,
		"--data-dir="+e.data(),
		"--listen-client-urls="+e.clientURL()+",http://127.0.0.1:2379",
		"--advertise-client-urls="+e.clientURL(),
		"--listen-peer-urls="+e.peerURL(),
		"--initial-advertise-peer-urls="+e.peerURL(),
		"--initial-cluster="+e.cluster(),
		"--logger=zap",
		"--unsafe-no-fsync",
	)
	return err
}

func (e *Etcd) await(ctx context.Context) error {
	client, err := e.Client()
	if err != nil {
		return err
	}
	err = e.process.WaitFor(ctx, "a leader of etcd", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := client.Get(ctx, "leno")
		return err
	})
	return e.started(err)
}

// Forget deletes the data of the server, which must not be running. If it is the only server, the next
// Start creates a new, empty cluster.
func (e *Etcd) Forget() error {
	if err := e.checkEnded(); err != nil {
		return err
	}
	e.lab.step("%s: its data is deleted", e.Name)
	return os.RemoveAll(e.data())
}

// RestoreEtcd sets all servers back to a snapshot: it kills those that run, replaces their data, and
// starts them all.
func (l *Lab) RestoreEtcd(ctx context.Context, snapshot string) error {
	for _, e := range l.EtcdServers {
		if err := e.Kill(); err != nil {
			return err
		}
	}
	for _, e := range l.EtcdServers {
		if err := e.restore(ctx, snapshot); err != nil {
			return err
		}
	}
	return StartAll(ctx, l.EtcdServers)
}

// restore replaces the data of the server, which must not be running.
func (e *Etcd) restore(ctx context.Context, snapshot string) error {
	program := filepath.Join(filepath.Dir(e.lab.opts.Etcd), "etcdutl")
	if _, err := os.Stat(program); err != nil {
		if program, err = FindEtcdutl(); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(e.data()); err != nil {
		return err
	}
	e.restores++
	e.lab.step("%s: restoring a snapshot", e.Name)
	_, err := e.Namespace.Exec(
		ctx, program, "snapshot", "restore", snapshot,
		"--name="+e.Name,
		"--data-dir="+e.data(),
		"--initial-cluster="+e.cluster(),
		"--initial-advertise-peer-urls="+e.peerURL(),
	)
	return err
}
