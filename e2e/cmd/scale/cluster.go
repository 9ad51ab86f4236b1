package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/probe"
	"github.com/lenonet/leno/internal/testkit/ports"
	"github.com/lenonet/leno/internal/testkit/process"
)

// servers is the number of servers in a cluster, as in production.
const servers = 3

// A cluster is three servers on loopback ports, with their data on disk.
type cluster struct {
	addresses []string // of their APIs for clients
	processes []*process.Process
}

// startConsul starts the servers with their data in dir, and waits until each of them accepts
// writes.
func startConsul(ctx context.Context, binary, dir string) (*consulStore, error) {
	s := &consulStore{}
	if err := s.start(ctx, binary, dir); err != nil {
		s.kill()
		return nil, err
	}
	return s, nil
}

func (c *consulStore) start(ctx context.Context, binary, dir string) error {
	const each = 3
	free, err := ports.Free(servers * each)
	if err != nil {
		return err
	}
	var join []string
	for i := range servers {
		join = append(join, address(free[i*each+1]))
	}
	for i := range servers {
		http, serf, rpc := free[i*each], free[i*each+1], free[i*each+2]
		text, err := json.Marshal(map[string]any{
			"node_name": fmt.Sprintf("server-%d", i), "server": true, "bootstrap_expect": servers, "retry_join": join, "retry_interval": "1s",
			"bind_addr": "127.0.0.1", "client_addr": "127.0.0.1", "data_dir": filepath.Join(dir, fmt.Sprint(i)),
			"log_level": "WARN", "disable_update_check": true,
			"ports": map[string]int{"http": http, "serf_lan": serf, "server": rpc, "serf_wan": -1, "dns": -1, "grpc": -1, "grpc_tls": -1},
			// The default. With 1, the value for production, servers that share two CPUs with all
			// their clients would consider each other dead.
			"performance": map[string]int{"raft_multiplier": 5},
			// All simulated hosts have the same address here; the default is 200 connections.
			"limits": map[string]int{"http_max_conns_per_client": 8000},
		})
		if err != nil {
			return err
		}
		file := filepath.Join(dir, fmt.Sprintf("server-%d.json", i))
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
		p, err := process.Start(exec.Command(binary, "agent", "-config-file="+file), file+".log")
		if err != nil {
			return err
		}
		client, err := api.NewClient(&api.Config{Address: address(http)})
		if err != nil {
			return err
		}
		c.processes, c.addresses, c.clients = append(c.processes, p), append(c.addresses, address(http)), append(c.clients, client)
	}
	for i, p := range c.processes {
		if err := p.WaitFor(ctx, "Consul", func(ctx context.Context) error { return ready(ctx, c.clients[i]) }); err != nil {
			return err
		}
	}
	return nil
}

// ready returns nil when the server knows all peers and can create sessions, for which its node
// must be in the catalogue.
func ready(ctx context.Context, client *api.Client) error {
	options := (&api.WriteOptions{}).WithContext(ctx)
	peers, err := client.Status().PeersWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return err
	}
	if len(peers) < servers {
		return errors.New("not all servers have joined")
	}
	id, _, err := client.Session().CreateNoChecks(&api.SessionEntry{}, options)
	if err != nil {
		return err
	}
	_, err = client.Session().Destroy(id, options)
	return err
}

// address returns the server of simulated host i. Hosts are spread evenly.
func (c *cluster) address(i int) string { return c.addresses[i%servers] }

// cpu returns the CPU time of all servers.
func (c *cluster) cpu() (time.Duration, error) {
	var sum time.Duration
	for _, p := range c.processes {
		used, err := probe.CPUTime(p.Pid())
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

func (c *cluster) kill() {
	for _, p := range c.processes {
		p.Kill()
	}
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
