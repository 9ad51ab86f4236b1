package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
)

// TestMesh runs Consul's own proxy beside the tasks of a job in leno's network, with the redirection of a transparent
// proxy, Consul's DNS at the address of the gateway, and services with IPv6 addresses.
func TestMesh(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	c := newCluster(t, 2, func(o *lab.Options) {
		o.ConsulConfig = `{"connect": {"enabled": true}}`
		o.ConsulClientConfig = merged(t, "../../examples/consul/mesh.json", "../../examples/consul/dns.json")
	})
	consul, err := lab.FindConsul()
	c.must(err)
	for _, m := range c.machines {
		c.must(m.installPlugins(c.programs.cni))
		c.must(os.Symlink(consul, m.path("/usr/local/bin/consul")))
		c.prepare(m)
	}
	c.startClients()
	c.nomad("job", "run", "-detach", "-var=stagger=1s", c.dual())
	c.agents(0, c.machines...)
	c.connectBlock()
	c.findsNoCNI(c.machines[0])
	c.does("nomad job run examples/nomad/mesh.nomad.hcl", "-detach")
	c.nomad("job", "run", "-detach", c.ipv6())
	c.meshed()
	c.advertisesIPv6()
	c.resolves()
}

// merged returns JSON files in one object, whose members must differ below the first level.
func merged(t *testing.T, paths ...string) string {
	t.Helper()
	all := map[string]map[string]any{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var file map[string]map[string]any
		if err := json.Unmarshal(text, &file); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for name, members := range file {
			if all[name] == nil {
				all[name] = map[string]any{}
			}
			maps.Copy(all[name], members)
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// variant writes an example job with a text replaced and returns its path.
func (c *cluster) variant(name, old, replacement string) string {
	c.t.Helper()
	text := c.example("nomad/" + name)
	c.must(contains(text, old))
	path := filepath.Join(c.Dir, name)
	c.must(os.WriteFile(path, []byte(strings.ReplaceAll(text, old, replacement)), 0o644))
	return path
}

// dual returns the example job with an IPv6 pool.
func (c *cluster) dual() string {
	return c.variant("leno.nomad.hcl", "            backend \"vxlan\" {}", "            ipv6 {\n              prefix = \"fd00:5::/48\"\n            }\n            backend \"vxlan\" {}")
}

// ipv6 returns the example job with web servers whose services have IPv6 addresses.
func (c *cluster) ipv6() string {
	return c.variant("web.nomad.hcl", `address_mode = "alloc"`, c.says(`address_mode = "alloc_ipv6"`))
}

// connectBlock shows which releases of Nomad accept a connect block in a CNI network.
func (c *cluster) connectBlock() {
	c.t.Helper()
	path := c.variant("web.nomad.hcl", "port         = \"8080\"", "port         = \"8080\"\n      connect {\n        sidecar_service {}\n      }")
	out, err := c.cli("job", "plan", path)
	const refusal = `Consul Connect sidecar requires bridge network, found "cni/leno"`
	refused := strings.Contains(out+fmt.Sprint(err), c.says(refusal))
	if version := c.nomad("version"); refused != strings.Contains(version, "Nomad v1.10.") {
		c.t.Errorf("%s: %v\n%s", version, err, out)
	}
}

// findsNoCNI removes a client's CNI configurations for a moment. Doctor says what is missing.
func (c *cluster) findsNoCNI(m *machine) {
	c.t.Helper()
	dir := m.path("/opt/cni/config")
	c.must(os.Rename(dir, dir+".away"))
	const warning = "Nomad's jobs cannot use a network of leno"
	ask := func() string {
		c.t.Helper()
		out, err := m.run(c.ctx, "leno", "doctor", "-passive")
		c.must(err)
		return strings.Join(strings.Fields(out), " ")
	}
	c.must(errors.Join(contains(ask(), warning), contains(ask(), "copy leno.conflist to cni_config_dir")))
	c.must(os.Rename(dir+".away", dir))
	if out := ask(); strings.Contains(out, warning) {
		c.t.Errorf("doctor: %s", out)
	}
}

// group returns the running allocation of a group and its machine.
func (c *cluster) group(job, name string) (found alloc, on *machine) {
	c.t.Helper()
	c.eventually("group "+name+" of "+job+" to run", func(ctx context.Context) error {
		all, err := c.allocs(ctx, job)
		if err != nil {
			return err
		}
		for _, a := range all {
			if a.TaskGroup != name || a.ClientStatus != "running" || a.DesiredStatus != "run" {
				continue
			}
			if err := c.get(ctx, "/v1/allocation/"+a.ID, &a); err != nil { // the list does not contain the network
				return err
			}
			for _, m := range c.machines {
				if m.Name == a.NodeName {
					found, on = a, m
					return nil
				}
			}
		}
		return fmt.Errorf("%+v", all)
	})
	return found, on
}

// meshed checks what reaches the web server through the mesh, and what does not.
func (c *cluster) meshed() {
	c.t.Helper()
	web, server := c.group("mesh", "web")
	client, host := c.group("mesh", "client")
	from := c.namespace(host, client)
	c.eventually("the page through both proxies", func(ctx context.Context) error {
		text, err := read(ctx, from.HTTP(), "http://127.0.0.1:9191/")
		if err != nil {
			return err
		}
		return contains(text, "This is the mesh.")
	})
	proxies, _, err := c.Consul.Client().Health().Connect("mesh-web", "", true, nil)
	c.must(err)
	if len(proxies) != 1 || proxies[0].Service.Address != web.NetworkStatus.Address || proxies[0].Service.Port != 20000 {
		c.t.Errorf("%+v in Consul, the allocation has %s", proxies, web.NetworkStatus.Address)
	}

	// The redirection: a connection to any port from another host ends in the proxy, which wants TLS.
	at := c.namespace(server, web)
	rules, err := at.Exec(c.ctx, "iptables", "-t", "nat", "-S")
	c.must(err)
	for _, rule := range []string{"-A PREROUTING -p tcp -j CONSUL_PROXY_INBOUND", "-A CONSUL_PROXY_IN_REDIRECT -p tcp -j REDIRECT --to-ports 20000"} {
		c.must(contains(rules, c.says(rule)))
	}
	if text, err := read(c.ctx, from.HTTP(), fmt.Sprintf("http://%s:8080/", web.addr())); err == nil {
		c.t.Errorf("past the mesh: %s", text)
	}
	counted, err := at.Exec(c.ctx, "iptables", "-t", "nat", "-vnxL", "CONSUL_PROXY_IN_REDIRECT")
	c.must(err)
	if strings.Fields(strings.Split(strings.TrimSpace(counted), "\n")[2])[0] == "0" {
		c.t.Errorf("nothing was redirected:\n%s", counted)
	}

	// Consul's intentions apply.
	_, err = c.Consul.CLI(c.ctx, "intention", "create", "-deny", "mesh-client", "mesh-web")
	c.must(err)
	c.eventually("the proxy to refuse the client", func(ctx context.Context) error {
		if text, err := read(ctx, from.HTTP(), "http://127.0.0.1:9191/"); err == nil {
			return errors.New(text)
		}
		return nil
	})
}

// resolves asks Consul's DNS at the gateway's address, also after the agent has restarted and the host has another
// subnet.
func (c *cluster) resolves() {
	c.t.Helper()
	const rule = "sudo iptables -t nat -A PREROUTING -s 10.5.0.0/16 -p udp --dport 53 -m addrtype --dst-type LOCAL -j REDIRECT --to-ports 8600"
	for _, m := range c.machines {
		c.follow(m, rule)
	}
	web, _ := c.group("mesh", "web")
	resolve := func() (gateway string) {
		client, host := c.group("mesh", "client")
		from := c.namespace(host, client)
		route, err := from.Exec(c.ctx, "ip", "-4", "route", "show", "default")
		c.must(err)
		gateway = strings.Fields(route)[2]
		c.eventually("an answer at "+gateway, func(ctx context.Context) error {
			out, err := from.Exec(ctx, "busybox", "nslookup", "mesh-web.service.consul", gateway)
			return errors.Join(err, contains(out, "Address: "+web.NetworkStatus.Address))
		})
		return gateway
	}
	before := resolve()
	client, host := c.group("mesh", "client")
	agent := c.self(host)
	_, err := host.run(c.ctx, "kill", "-9", fmt.Sprint(agent.PID))
	c.must(err)
	c.another(host, agent)
	if now := resolve(); now != before {
		c.t.Errorf("the gateway was %s and is %s", before, now)
	}

	old, err := host.subnet()
	c.must(err)
	taken := map[string]bool{}
	for _, m := range c.machines {
		subnet, err := m.subnet()
		c.must(err)
		taken[subnet.String()] = true
	}
	wanted := ""
	for i := 201; wanted == "" || taken[wanted]; i++ {
		wanted = fmt.Sprintf("10.5.%d.0/24", i)
	}
	for _, args := range [][]string{{"reservation", "add", "-node=" + host.Name, "default", wanted}, {"lease", "revoke", "default", old.String()}} {
		_, err := host.Leno(c.ctx, args...)
		c.must(err)
	}
	c.eventually("the host to have another subnet", func(context.Context) error {
		now, err := host.subnet()
		if err == nil && now.String() != wanted {
			err = fmt.Errorf("it has %s", now)
		}
		return err
	})
	c.nomad("alloc", "stop", "-detach", client.ID)
	c.eventually("the client to have an address in the new subnet", func(context.Context) error {
		now, _ := c.group("mesh", "client")
		if !netip.MustParsePrefix(wanted).Contains(now.addr()) {
			return fmt.Errorf("it has %s", now.addr())
		}
		return nil
	})
	if now := resolve(); now == before {
		c.t.Errorf("the gateway is still %s", now)
	}
}

// advertisesIPv6 reaches a web server from another host at the address that Consul has.
func (c *cluster) advertisesIPv6() {
	c.t.Helper()
	web, server := c.group("mesh", "web")
	c.eventually("the page at the IPv6 address in Consul", func(ctx context.Context) error {
		services, _, err := c.Consul.Client().Health().Service("web", "", true, nil)
		if err != nil {
			return err
		}
		for _, s := range services {
			if s.Node.Node == server.Name {
				continue // not over the network
			}
			addr, err := netip.ParseAddr(s.Service.Address)
			if err != nil || !netip.MustParsePrefix("fd00:5::/48").Contains(addr) {
				return fmt.Errorf("%q in Consul: %w", s.Service.Address, err)
			}
			text, err := read(ctx, c.namespace(server, web).HTTP(), fmt.Sprintf("http://[%s]:%d/", addr, s.Service.Port))
			return errors.Join(err, contains(text, "on "+s.Node.Node))
		}
		return fmt.Errorf("%+v", services)
	})
}
