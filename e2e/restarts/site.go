// Package restarts restarts agents in every way that occurs on a host while packets cross, and
// counts the effects on them. It owns the ways and the counting; its callers decide what is too
// much.
package restarts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

const (
	network = "default" // the network that carries the packets
	second  = "second"  // a network that is added and removed
)

// A Site is two hosts with a container each. Both hosts drop forwarded packets unless one of leno's
// rules accepts them, so that a moment without rules costs packets too.
type Site struct {
	*lab.Lab
	Backend string
	Host    *lab.Host      // the one that is restarted
	Peer    *lab.Host      // the other
	To      *lab.Container // on Host
	From    *lab.Container // on Peer, the source of all packets
	Rest    time.Duration  // additional time during which packets cross between two restarts

	mine settings // of Host's configuration
}

// settings are the values that a newer configuration may change.
type settings struct {
	quiet     bool // log_level
	short     bool // lease.ttl
	unmasked  bool // ip_masq
	elsewhere bool // subnet_file
	further   bool // a second network
	renamed   bool // node_name
	directly  bool // direct_routing, which belongs to the network and not to the host
}

// NewSite starts agents on the lab's first two hosts, with a container each. The caller closes the
// lab.
func NewSite(ctx context.Context, l *lab.Lab, backend string) (*Site, error) {
	s := &Site{Lab: l, Backend: backend, Host: l.Hosts[0], Peer: l.Hosts[1]}
	for _, h := range []*lab.Host{s.Host, s.Peer} {
		for _, tables := range []string{"iptables", "ip6tables"} {
			if _, err := h.Exec(ctx, tables, "-P", "FORWARD", "DROP"); err != nil {
				return nil, err
			}
		}
		if err := errors.Join(h.StartAgent(s.config(h, settings{})), h.WaitReady(ctx)); err != nil {
			return nil, err
		}
	}
	var err error
	if s.To, err = s.Host.AddContainer(ctx, network); err != nil {
		return nil, err
	}
	if s.From, err = s.Peer.AddContainer(ctx, network); err != nil {
		return nil, err
	}
	for _, addr := range s.To.Addrs {
		err := lab.WaitFor(ctx, "a first answer", func(ctx context.Context) error {
			r, err := s.From.Ping(ctx, addr, lab.PingOptions{})
			if err == nil && r.Lost() > 0 {
				err = fmt.Errorf("none from %s", addr)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// config returns the configuration of a host.
func (s *Site) config(h *lab.Host, o settings) string {
	body := fmt.Sprintf(`
  ipv4 { prefix = "10.5.0.0/16" }
  ipv6 { prefix = "fd00:5::/48" }
  backend %q {}
  ip_masq = %t
  forward = true`, s.Backend, !o.unmasked)
	blocks := []string{h.Network(network, body)}
	if o.elsewhere {
		blocks[0] = strings.Replace(blocks[0], h.SubnetFile(network), s.elsewhere(h), 1)
	}
	if o.short {
		blocks = append(blocks, "lease {\n  ttl = \"100s\"\n}\n")
	}
	if o.further {
		blocks = append(blocks, h.Network(second, "  ipv4 { prefix = \"10.6.0.0/16\" }\n  backend \"vxlan\" { vni = 2 }\n  ip_masq = true\n  forward = true"))
	}
	text := h.Config(blocks...)
	if o.renamed {
		text = strings.Replace(text, fmt.Sprintf("%q", h.Name), fmt.Sprintf("%q", h.Name+"-renamed"), 1)
	}
	if o.quiet {
		text = strings.Replace(text, `"DEBUG"`, `"INFO"`, 1)
	}
	return text
}

func (s *Site) elsewhere(h *lab.Host) string { return filepath.Join(h.Dir, "elsewhere", "subnet.env") }

// subnetFile returns the current path of the host's subnet file.
func (s *Site) subnetFile() string {
	if s.mine.elsewhere {
		return s.elsewhere(s.Host)
	}
	return s.Host.SubnetFile(network)
}

// Subnets returns the subnets in the host's subnet file.
func (s *Site) Subnets() ([]netip.Prefix, error) {
	file, err := lab.ReadSubnetFile(s.subnetFile())
	return file.Subnets(), err
}

// define changes the network in Consul through a running agent.
func (s *Site) define(ctx context.Context, by *lab.Host, options string) error {
	path := filepath.Join(s.Dir, network+".hcl")
	text := fmt.Sprintf("network %q {\n  ipv4 { prefix = \"10.5.0.0/16\" }\n  ipv6 { prefix = \"fd00:5::/48\" }\n  backend %q {%s}\n}\n", network, s.Backend, options)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	_, err := by.Leno(ctx, "network", "apply", path)
	return err
}
