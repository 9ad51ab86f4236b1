package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// A Host is one machine of the lab. It embeds its namespace, so Exec, Start, Ping and so on run on
// the host. Its methods must be called by one goroutine at a time.
type Host struct {
	*Namespace
	Name  string       // "host-a"; also its node name
	Addrs []netip.Addr // on eth0, IPv4 then IPv6
	Dir   string       // its files

	// Consul is the client agent on this host, or nil before StartConsul.
	Consul *Consul

	// Unnamed leaves the node name out of the configuration. The agent asks the host's own Consul agent for it.
	Unnamed bool

	// Program is the leno binary of this host, or "" for the lab's. It lets a test upgrade one host
	// at a time.
	Program string

	lab      *Lab
	agent    *Process
	networks map[string]*attachment
	wires    int // cables connected so far
}

// agentURL is where the agent's HTTP API listens by default.
const agentURL = "http://127.0.0.1:5366"

func newHost(l *Lab, ns *Namespace, name string, addrs []netip.Addr) *Host {
	return &Host{
		Namespace: ns, Name: name, Addrs: addrs, Dir: filepath.Join(l.Dir, name),
		lab: l, networks: map[string]*attachment{},
	}
}

// SubnetFile returns the path where the host's agent writes the subnet file of a network.
func (h *Host) SubnetFile(network string) string { return filepath.Join(h.Dir, network+".env") }

// DataDir returns the directory where the host's agent keeps its state.
func (h *Host) DataDir() string { return filepath.Join(h.Dir, "data") }

// Network returns a network block for a configuration: body plus the host's own subnet file.
func (h *Host) Network(name, body string) string {
	return fmt.Sprintf("network %q {\n%s\n  subnet_file = %q\n}\n", name, strings.Trim(body, "\n"), h.SubnetFile(name))
}

// Config returns a complete configuration for the host's agent: the settings specific to this host,
// then the blocks. The agent uses the host's own Consul agent if it runs one, else the first of the
// lab's servers of Consul, or all of its servers of etcd.
func (h *Host) Config(blocks ...string) string {
	head := fmt.Sprintf("data_dir  = %q\nlog_level = \"DEBUG\"\n\n", h.DataDir())
	if !h.Unnamed {
		head = fmt.Sprintf("node_name = %q\n", h.Name) + head
	}
	text := strings.Join(blocks, "\n")
	if !strings.Contains(text, "probe_interval") {
		head = "probe_interval = \"2s\"\n" + head // what broke or was repaired is seen soon
	}
	// At the default socket, commands on the hosts of all labs would find the agent, because they share /run.
	switch http := fmt.Sprintf("http {\n  socket = %q\n", filepath.Join(h.Dir, "leno.sock")); {
	case !strings.Contains(text, "http {"):
		head += http + "}\n\n"
	case !strings.Contains(text, "socket"):
		text = strings.Replace(text, "http {\n", http, 1)
	}
	if block := h.lab.opts.StoreBlock; block != nil {
		return head + block(h) + "\n\n" + text
	}
	if h.lab.Etcd != nil {
		return head + fmt.Sprintf("etcd {\n  endpoints = %s\n}\n\n", h.lab.EtcdEndpoints()) + text
	}
	consul := h.Consul
	if consul == nil {
		consul = h.lab.Consul
	}
	if consul != nil {
		head += fmt.Sprintf("consul {\n  address = %q\n}\n\n", consul.Address())
	}
	return head + text
}

// ConfigFile returns the path of the configuration that StartAgent writes.
func (h *Host) ConfigFile() string { return filepath.Join(h.Dir, h.Name+".hcl") }

// StartAgent writes the configuration and starts `leno agent` with it. It does not wait until the
// agent is ready; see WaitReady.
func (h *Host) StartAgent(config string) error {
	if err := os.WriteFile(h.ConfigFile(), []byte(config), 0o644); err != nil {
		return err
	}
	return h.RestartAgent()
}

// RestartAgent starts the agent with the configuration file as it is on disk.
func (h *Host) RestartAgent() (err error) {
	program := cmp.Or(h.Program, h.lab.opts.Leno)
	if h.Program == "" && h == h.lab.Hosts[0] {
		program = cmp.Or(h.lab.opts.Agent, program)
	}
	if program == "" {
		return errors.New("the lab was given no leno binary")
	}
	if h.agent != nil && h.agent.IsRunning() {
		return fmt.Errorf("the agent on %s is running already", h.Name)
	}
	if h.agent, err = h.Start(program, "agent", "-config-file", h.ConfigFile()); err != nil {
		return err
	}
	h.lab.step("%s: leno agent -config-file %s, pid %d", h.Name, h.ConfigFile(), h.agent.Pid())
	return nil
}

// StopAgent ends the agent with SIGTERM and waits for it. An exit code other than 0 is an error.
func (h *Host) StopAgent(ctx context.Context) error {
	if h.agent == nil {
		return nil
	}
	h.lab.step("%s: stopping the agent", h.Name)
	if err := h.agent.Stop(ctx); err != nil {
		return err
	}
	if code := h.agent.ExitCode(); code != 0 {
		return fmt.Errorf("the agent on %s ended with exit code %d: %s", h.Name, code, h.agent.Tail(5))
	}
	return nil
}

// KillAgent ends the agent with SIGKILL.
func (h *Host) KillAgent() error {
	if h.agent == nil {
		return nil
	}
	h.lab.step("%s: kill -9 %d, the agent", h.Name, h.agent.Pid())
	h.agent.Kill()
	return nil
}

// Cut disconnects the host from the network without a carrier change: its link stays up, but no
// packet gets in or out. Mend connects it again.
func (h *Host) Cut(ctx context.Context) error { return h.lab.unplug(ctx, h.Name) }

// Mend undoes Cut.
func (h *Host) Mend(ctx context.Context) error { return h.lab.plug(ctx, h.Name) }

// Agent returns the running agent, or the last one that ran, or nil before StartAgent.
func (h *Host) Agent() *Process { return h.agent }

// CarriesPackets reports whether the process of an agent on the host carries the packets of a network, which wait
// while there is none. The network's device is one of TUN then.
func (h *Host) CarriesPackets(ctx context.Context) (bool, error) {
	devices, err := h.Exec(ctx, "ip", "-o", "link", "show", "type", "tun")
	return strings.Contains(devices, ": leno-"), err
}

// Leno runs the leno program on the host and returns what it prints.
func (h *Host) Leno(ctx context.Context, args ...string) (string, error) {
	return h.Exec(ctx, append([]string{cmp.Or(h.Program, h.lab.opts.Leno)}, args...)...)
}

// Get requests a path such as "/healthz" from the host's agent over HTTP. A response of any status
// is no error.
func (h *Host) Get(ctx context.Context, path string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, agentURL+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := h.HTTP().Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// WaitReady blocks until the agent reports that every network is ready. It fails at once if the
// agent ends.
func (h *Host) WaitReady(ctx context.Context) error {
	if h.agent == nil {
		return fmt.Errorf("no agent was started on %s", h.Name)
	}
	return h.agent.WaitFor(ctx, "the agent on "+h.Name+" to be ready", func(ctx context.Context) error {
		status, body, err := h.Get(ctx, "/readyz")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("/readyz answers %d: %s", status, strings.TrimSpace(body))
		}
		return err
	})
}

// StartConsul starts a Consul client agent on the host, at 127.0.0.1:8500.
func (h *Host) StartConsul(ctx context.Context) (err error) {
	if h.Consul == nil {
		if h.Consul, err = newConsulClient(h); err != nil {
			return err
		}
	}
	return h.Consul.Start(ctx)
}
