package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/probe"
	"github.com/lenonet/leno/internal/testkit/ports"
	"github.com/lenonet/leno/internal/testkit/process"
)

// A footprint is the memory of one process in MiB.
type footprint struct {
	Resident float64 `json:"resident"`
	Heap     float64 `json:"heap"` // the part that is not pages of the program file
	Most     float64 `json:"most"`
}

func footprintOf(pid int) (footprint, error) {
	m, err := probe.Memory(pid, "VmRSS", "RssAnon", "VmHWM")
	return footprint{m["VmRSS"], m["RssAnon"], m["VmHWM"]}, err
}

// memory measures a registry client alone and a complete agent with n leases.
func (m *measurement) memory(ctx context.Context, program, leno, dir string, n int) error {
	m.log("memory with %d leases", n)
	name := fmt.Sprintf("memory-%d", n)
	if _, err := newWorld(ctx, m.store, name, n, 100); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, program, "-watch-one", m.store.address(0), "-network", name, "-stores", m.kind).Output()
	if err != nil {
		return fmt.Errorf("watch alone: %w", err)
	}
	var alone footprint
	if err := json.Unmarshal(out, &alone); err != nil {
		return fmt.Errorf("watch alone: %w", err)
	}
	m.result.memory(fmt.Sprintf("%d leases: a registry client that watches", n), alone)
	agent, err := m.agent(ctx, leno, filepath.Join(dir, name), name, n+1)
	if err != nil {
		return fmt.Errorf("agent among %d leases: %w", n, err)
	}
	m.result.memory(fmt.Sprintf("%d leases: leno agent, backend alloc", n), agent)
	return nil
}

// watchOne is the child process of memory: it follows a network, frees all memory that it can, and
// prints its footprint.
func watchOne(ctx context.Context, kind, address, network string, out io.Writer) error {
	open := openConsul
	if kind == lab.StoreEtcd {
		open = openEtcd
	}
	client, err := open(address, network, &meter{})
	if err != nil {
		return err
	}
	n, err := client.Network(ctx, network)
	if err != nil {
		return err
	}
	set, _, err := client.WatchLeases(ctx, n, 0)
	if err != nil {
		return err
	}
	runtime.GC()
	debug.FreeOSMemory()
	f, err := footprintOf(os.Getpid())
	runtime.KeepAlive(set)
	runtime.KeepAlive(client)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(f)
}

// agent runs leno itself until it knows all leases, and for 10 s more. The agent takes a lease,
// releases it at the end, and changes nothing else.
func (m *measurement) agent(ctx context.Context, binary, dir, network string, leases int) (f footprint, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return f, err
	}
	free, err := ports.Free(1)
	if err != nil {
		return f, err
	}
	own, err := net.ResolveTCPAddr("tcp", address(free[0]))
	if err != nil {
		return f, err
	}
	config := fmt.Sprintf(`
node_name = "measured"
data_dir  = %q
%slease {
  release_on_stop = true
}
underlay {
  public_ip = "203.0.113.1"
}
http {
  address = %q
}
network %q {
  subnet_file = %q
  ip_masq     = false
  forward     = false
}
`, filepath.Join(dir, "data"), m.store.block(network), own, network, filepath.Join(dir, "subnet.env"))
	file := filepath.Join(dir, "leno.hcl")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return f, err
	}
	p, err := process.Start(exec.Command(binary, "agent", "-config-file="+file), file+".log")
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	client, err := api.New(api.Config{Address: own.String()})
	if err != nil {
		return f, err
	}
	defer client.Close()
	err = p.WaitFor(ctx, "the agent", func(ctx context.Context) error {
		list, err := client.Leases(ctx, network)
		if err == nil && len(list.Leases) < leases {
			err = fmt.Errorf("%d leases so far", len(list.Leases))
		}
		return err
	})
	if err != nil {
		return f, err
	}
	if err := lab.Sleep(ctx, min(10*time.Second, m.minute)); err != nil {
		return f, err
	}
	return footprintOf(p.Pid())
}
