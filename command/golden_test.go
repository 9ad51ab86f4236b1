package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/hosts"
	"github.com/lenonet/leno/command/status"
)

// result is the outcome of a command.
type result struct {
	code           int
	stdout, stderr string
}

// world is the environment in which a command runs.
type world struct {
	env      map[string]string
	stdin    string
	backends map[string]backend.Type // nil accepts any
	terminal bool
}

func (w world) run(args ...string) result {
	var stdout, stderr bytes.Buffer
	code := cli.Run(args, cli.Meta{
		Stdin: strings.NewReader(w.stdin), Stdout: &stdout, Stderr: &stderr,
		Getenv: func(name string) string { return w.env[name] },
		Now:    func() time.Time { return now }, Terminal: w.terminal, ErrorTerminal: w.terminal,
		Version: "0.1.0", Backends: w.backends,
	}, Commands)
	return result{code, stdout.String(), stderr.String()}
}

// golden compares got with testdata/<name>.golden. With LENO_UPDATE_GOLDEN set it writes that file
// instead.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".golden")
	if os.Getenv("LENO_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func (r result) transcript(args []string) string {
	text := fmt.Sprintf("$ leno %s\n%s", strings.Join(args, " "), r.stdout)
	if r.stderr != "" {
		text += "-- stderr --\n" + r.stderr
	}
	return text + fmt.Sprintf("-- exit %d --\n", r.code)
}

// fits80 fails for lines wider than a terminal, except those of one word, which a shell would not put together again.
func fits80(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := cli.DisplayWidth(strings.TrimSuffix(line, "\n")); n > 80 && len(strings.Fields(strings.TrimSuffix(line, "\\\n"))) > 1 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// planLeft returns the creation of a network that already has reservations.
func planLeft(f *fakeAgent) api.NetworkPlan {
	return api.NetworkPlan{Name: "green", Action: api.ActionCreate, Changes: []api.Change{}, Hosts: []api.HostChange{}, Refused: []api.Refusal{}, Reservations: f.reservations}
}

// netConf is flannel's configuration of a network.
const netConf = `{"Network":"10.9.0.0/16","SubnetLen":25,"Backend":{"Type":"vxlan","DirectRouting":true}}`

// netConfOmitted is flannel's configuration with members that leno does not have.
const netConfOmitted = `{"Network":"10.9.0.0/16","EnableNFTables":true,"Zone\u001b":1,"Backend":{"Type":"vxlan","Learning":true}}`

// allowed returns the plan without the reasons against it.
func allowed(f *fakeAgent) api.NetworkPlan {
	p := f.plans["default"]
	p.Refused = []api.Refusal{}
	return p
}

// hopeless turns a change into one that could not work.
func hopeless(f *fakeAgent) {
	p := f.plans["default"]
	p.Refused = []api.Refusal{{Reason: "pool 10.5.0.0/16 contains the address between hosts of host-a (10.5.34.0/24)", Way: "choose a pool that contains no host's address"}}
	f.plans["default"] = p
}

// faultyProbe gives the probe hosts with one fault each.
func faultyProbe(f *fakeAgent) {
	cut, narrow := f.probe.Peers[0], f.probe.Peers[0]
	cut.Reached = false
	cut.Ways = []api.ProbedWay{{Path: api.PathOverlay, To: addr("10.5.77.0"), MTU: 1450, Small: api.ProbedSize{Bytes: 64, Sent: 3}, Full: api.ProbedSize{Bytes: 1450}}, cut.Ways[1]}
	narrow.Node, narrow.Held = longName, false
	narrow.Ways = []api.ProbedWay{narrow.Ways[0], narrow.Ways[1]}
	narrow.Ways[1].Full.Answered, narrow.Ways[1].Largest = 0, 1400
	narrow.Ways[1].Small.Answered, narrow.Ways[1].Small.AvgMS = 2, 12.345
	skipped := api.PeerProbe{Node: "host-d", Skipped: "vni is 2, the network's 1",
		Ways: []api.ProbedWay{{Path: api.PathOverlay, To: addr("10.5.90.0"), NotProbed: "left out"}, f.probe.Peers[0].Ways[1]}}
	f.probe.Peers = []api.PeerProbe{cut, narrow, skipped}
	f.probe.Findings = []api.Finding{
		{Check: "port", Status: api.FindingFault, Network: "default", Peer: "host-b", Tried: "send packets through the overlay to host-b and over the underlay to 192.0.2.77",
			Saw: "its host answers, packets from it to UDP port 8472 arrive, and packets to its UDP port 8472 are lost",
			Do:  "accept UDP port 8472 from 192.0.2.34 to 192.0.2.77: at its firewall, or one between (a cloud's security group)"},
		{Check: "path_mtu", Status: api.FindingWarning, Network: "default", Peer: longName, Tried: "send packets of the full size", Saw: "of 1500 bytes that eth0 can send, 1400 reach it over the underlay",
			Do: "lower the MTU: `ip link set dev eth0 mtu 1400`"},
	}
}

const longName = "ip-10-11-12-13.eu-central-1.compute.internal.example.com"

// isSwitched makes the fake agent's network one that is being switched.
func isSwitched(f *fakeAgent) {
	f.switching = api.NetworkSwitch{From: "vxlan", To: "wireguard", Direction: api.SwitchForward, Moved: 1, ModifyIndex: 9, Hosts: []api.HostChange{
		{Node: "host-a", Subnet: prefix("10.5.34.0/24"), Held: true, What: []string{"sends to all hosts over wireguard"}},
		{Node: "host-b", Subnet: prefix("10.5.77.0/24"), What: []string{"has not prepared wireguard: it is away"}},
	}}
}

// planSwitch makes the fake agent plan a switch to another backend.
func planSwitch(f *fakeAgent) {
	p := f.plans["default"]
	p.Action, p.Refused = api.ActionSwitch, []api.Refusal{}
	p.Changes = []api.Change{{Field: "backend.type", From: "vxlan", To: "wireguard"}}
	p.Hosts = []api.HostChange{{Node: "host-a", Subnet: prefix("10.5.34.0/24"), Held: true, What: []string{
		"keeps 10.5.34.0/24", "switches from vxlan to wireguard: it has both until all hosts send over wireguard",
		"its containers' MTU becomes 1440 instead of 1450: those that run keep theirs, and the host tells them what fits",
	}}}
	f.plans["default"] = p
}

// manyHosts gives the network five hosts of which three have a fault.
func manyHosts(f *fakeAgent) {
	lost := &api.PeerPath{State: api.PathLost, Reason: "no packet is answered", Since: now.Add(-40 * time.Second), Tested: now}
	own, peer := f.hosts[0], f.hosts[1]
	own.Summary = &api.HostSummary{Version: "0.1.0", Health: api.Warning, Reason: "paths: packets are lost", Peers: 4, Reached: 3, Lost: []string{"host-c"}}
	own.State, own.Reason = api.Warning, own.Summary.Reason
	peer.Summary = &api.HostSummary{Version: "0.1.0", Health: api.Passing, Peers: 4, Reached: 3, Lost: []string{"host-c"}, At: now}
	gone, consul, older := peer, peer, peer
	gone.Node, gone.Subnets, gone.PublicIPs = "host-c", []netip.Prefix{prefix("10.5.3.0/24")}, []netip.Addr{addr("192.0.2.3")}
	gone.State, gone.Reason, gone.Member, gone.Path, gone.Seen = api.HostFailed, "Consul's agents report its Consul agent as failed; no packet is answered",
		api.MemberFailed, lost, lost.Since
	gone.Summary = &api.HostSummary{Version: "0.1.0", Health: api.Passing, Peers: 4, Reached: 4, At: now.Add(-time.Minute)}
	consul.Node, consul.Subnets, consul.PublicIPs = longName, []netip.Prefix{prefix("10.5.4.0/24")}, []netip.Addr{addr("192.0.2.4")}
	consul.State, consul.Reason, consul.Member = api.HostFailed, "Consul's agents report its Consul agent as failed; packets reach the host", api.MemberFailed
	older.Node, older.Subnets, older.PublicIPs = "host-\x1b[2Jd", []netip.Prefix{prefix("10.5.5.0/24")}, []netip.Addr{addr("192.0.2.5")}
	older.Summary, older.State, older.MTU = nil, api.HostUnknown, 1400
	f.hosts = []api.Host{gone, consul, own, older, peer}
}

// TestTranscripts runs every command that talks to the agent and compares
// everything it prints.
func TestTranscripts(t *testing.T) {
	tests := []struct {
		name   string
		args   string
		set    func(*fakeAgent)
		stdin  string
		writes []string // requests other than GET
	}{
		{name: "doctor", args: "doctor", writes: []string{"PUT /v1/agent/doctor "}},
		{name: "doctor faults", args: "doctor -network=default -passive", set: func(f *fakeAgent) {
			f.findings = append([]api.Finding{
				{Check: "port", Status: api.FindingFault, Network: "default", Peer: "host-b", Tried: "read this host's firewall rules, and send packets",
					Saw: `what 192.0.2.77 sends to UDP port 8472 is dropped here by iptables-nft table filter chain INPUT: "policy DROP"`,
					Do:  "accept UDP port 8472 from 192.0.2.77 there, before that rule", Docs: "troubleshooting/checks#port"},
				{Check: "peers", Status: api.FindingWarning, Network: "default", Peer: longName, Tried: "send packets to the other hosts", Saw: "\x1b[2Jit is down"},
				{Check: "acl", Status: api.FindingUnknown, Tried: "ask Consul what the agent's token allows", Saw: "consul answered 500"}}, f.findings...)
		}, writes: []string{"PUT /v1/agent/doctor?network=default&passive=true "}},
		{name: "doctor json", args: "doctor -format=json", writes: []string{"PUT /v1/agent/doctor "}},
		{name: "doctor all", args: "doctor -all -network=default", writes: []string{"PUT /v1/agent/doctor?network=default&passive=true "}},
		{name: "doctor all faults", args: "doctor -all -network=default", set: manyHosts, writes: []string{"PUT /v1/agent/doctor?network=default&passive=true "}},
		{name: "doctor all bad address", args: "doctor -all -peer-address=192.0.2.1:5366"},
		{name: "hosts", args: "hosts"},
		{name: "hosts faults", args: "hosts default", set: manyHosts},
		{name: "hosts verbose", args: "hosts -verbose", set: manyHosts},
		{name: "hosts json", args: "hosts -format=json"},
		{name: "hosts none", args: "hosts", set: func(f *fakeAgent) { f.hosts = []api.Host{} }},
		{name: "doctor address", args: "doctor 10.5.35.2"},
		{name: "doctor address passive", args: "doctor -passive 10.5.35.2"},
		{name: "trace", args: "trace 10.5.34.2 10.5.35.2"},
		{name: "trace port", args: "trace 10.5.34.2 10.5.35.2 tcp/80", set: func(f *fakeAgent) { f.isDelivered = true }},
		{name: "trace json", args: "trace -format=json 10.5.34.2 10.5.35.2"},
		{name: "trace of no address", args: "trace 10.5.34.2 host-b"},
		{name: "trace of no port", args: "trace 10.5.34.2 10.5.35.2 tcp"},
		{name: "network list", args: "network list"},
		{name: "network list json", args: "network list -format=json"},
		{name: "network list empty", args: "network list", set: func(f *fakeAgent) { f.networks = []api.Network{} }},
		{name: "network list skipped", args: "network list", set: func(f *fakeAgent) {
			f.skipped = []api.Skipped{{Key: "leno/networks/\x1b[2Jx", Reason: "invalid: version 7, this leno reads version 1 and nothing that a later one may have written into the same place"}}
		}},
		{name: "network show", args: "network show default"},
		{name: "network show by default", args: "network show -format=json"},
		{name: "network show foreign", args: "network show blue"},
		{name: "network show differs", args: "network show", set: func(f *fakeAgent) {
			f.networks[1].Local.Differs = []string{"backend: the file says {\"type\":\"vxlan\",\"vni\":2}, Consul {\"type\":\"vxlan\",\"vni\":1}"}
			f.networks[1].Local.State = "waits for a lease: network is full: 254 subnets, 254 held"
			f.networks[1].Local.Subnets, f.networks[1].Local.MTU = []netip.Prefix{}, 0
			f.networks[1].Local.Applied, f.networks[1].Local.Renewed = time.Time{}, time.Time{}
		}},
		{name: "network show encrypted", args: "network show blue", set: func(f *fakeAgent) {
			for i := range f.networks {
				f.networks[i].Backend, f.networks[i].Encryption = json.RawMessage(`{"type":"wireguard"}`), "required"
			}
		}},
		{name: "network show unknown", args: "network show green"},
		{name: "network show several", args: "network show", set: func(f *fakeAgent) { f.networks[1].Local = nil }},
		{name: "network show none", args: "network show", set: func(f *fakeAgent) { f.networks = nil }},
		{name: "network delete", args: "network delete blue", writes: []string{"DELETE /v1/network/blue "}},
		{name: "network delete in use", args: "network delete default", writes: []string{"DELETE /v1/network/default "}},
		{name: "network delete force", args: "network delete default -force -token=t",
			writes: []string{"DELETE /v1/network/default?force=true t"}},
		{name: "network show differs from etcd", args: "network show", set: func(f *fakeAgent) {
			f.registry = "etcd at 10.0.0.1:2379, 10.0.0.2:2379"
			f.networks[1].Local.Differs = []string{"the backend"}
		}},
		{name: "network plan etcd", args: "network plan testdata/change.hcl", set: func(f *fakeAgent) {
			f.registry = "etcd at a:1"
		}},
		{name: "network plan same", args: "network plan testdata/same.hcl", set: func(f *fakeAgent) { f.plans = nil }},
		{name: "network plan", args: "network plan testdata/change.hcl"},
		{name: "network plan hopeless", args: "network plan testdata/change.hcl", set: hopeless},
		{name: "network plan json", args: "network plan testdata/change.hcl -format=json"},
		{name: "network plan stdin", args: "network plan -", stdin: "network \"blue\" {\n  ipv4 {\n    prefix = \"10.9.0.0/20\"\n  }\n  backend \"alloc\" {}\n}\n"},
		{name: "network plan bad stdin", args: "network plan -", stdin: "network \"blue\" {\n  ipv4 {\n    prefix = \"10.9.0.7/20\"\n  }\n}\n"},
		{name: "network plan without networks", args: "network plan -", stdin: "log_level = \"INFO\"\nnetwork \"blue\" {}\n"},
		{name: "network plan missing file", args: "network plan testdata/none.hcl"},
		{name: "network apply", args: "network apply testdata/change.hcl", set: func(f *fakeAgent) { f.plans["default"] = allowed(f) },
			writes: []string{"PUT /v1/network/default ", "PUT /v1/network/green "}},
		{name: "network apply refused", args: "network apply testdata/change.hcl", writes: []string{"PUT /v1/network/green "}},
		{name: "network apply force", args: "network apply -force testdata/change.hcl -token=t",
			writes: []string{"PUT /v1/network/default?force=true t", "PUT /v1/network/green?force=true t"}},
		{name: "network apply hopeless", args: "network apply -force testdata/change.hcl", set: hopeless,
			writes: []string{"PUT /v1/network/green?force=true "}},
		{name: "network apply json", args: "network apply testdata/same.hcl -format=json", set: func(f *fakeAgent) { f.plans = nil }},
		{name: "network apply race", args: "network apply testdata/change.hcl", set: func(f *fakeAgent) { f.raced, f.plans["default"] = true, allowed(f) },
			writes: []string{"PUT /v1/network/default ", "PUT /v1/network/green "}},
		{name: "network apply bad format", args: "network apply testdata/change.hcl -format=xml"},
		{name: "network plan from flannel", args: "network plan - -from-flannel=green", stdin: netConf},
		{name: "network plan from flannel omits", args: "network plan - -from-flannel=green", stdin: netConfOmitted},
		{name: "network plan from flannel omits json", args: "network plan - -from-flannel=green -format=json", stdin: netConfOmitted},
		{name: "network apply from flannel omits", args: "network apply - -from-flannel=green", stdin: netConfOmitted,
			writes: []string{"PUT /v1/network/green "}},
		{name: "network plan from flannels comment", args: "network plan - -from-flannel=blue", stdin: "// flannel\n{}"},
		{name: "network apply from flannel", args: "network apply - -from-flannel=green", stdin: netConf,
			writes: []string{"PUT /v1/network/green "}},
		{name: "network show switched", args: "network show", set: func(f *fakeAgent) {
			f.networks[1].Local.Switch = &api.Switch{From: "vxlan", To: "wireguard", Moved: 1, Fault: "udp port 51820 is used by another program",
				Waiting: []api.WaitingPeer{{Node: "host-b", Reason: "it has not prepared wireguard yet"}}}
		}},
		{name: "network switch none", args: "network switch"},
		{name: "network switch", args: "network switch default", set: isSwitched},
		{name: "network switch json", args: "network switch -format=json", set: isSwitched},
		{name: "network switch reverse", args: "network switch -reverse -token=t", set: isSwitched,
			writes: []string{"PUT /v1/network/default/switch t"}},
		{name: "network switch two flags", args: "network switch -reverse -stop", set: isSwitched},
		{name: "network plan switched", args: "network plan testdata/change.hcl", set: planSwitch},
		{name: "lease list", args: "lease list"},
		{name: "lease list json", args: "lease list -format json default"},
		{name: "lease list long", args: "lease list", set: func(f *fakeAgent) {
			f.leases[1].Node = longName
			f.leases[0].Subnet, f.leases[0].PublicIPs = prefix("fd00:5:0:22::/64"), []netip.Addr{addr("2001:db8:1234:5678::34")}
		}},
		{name: "lease list hostile", args: "lease list", set: func(f *fakeAgent) {
			f.leases[1].Node = "a\x1b[2J\u202eb\nc\xff"
			f.skipped = []api.Skipped{{Key: "leno/leases/default/x\x07", Reason: "invalid: key \"x\""}, {Key: "k", Reason: "r"}}
		}},
		{name: "lease list none", args: "lease list", set: func(f *fakeAgent) { f.leases = []api.Lease{} }},
		{name: "lease show", args: "lease show 10.5.34.0/24"},
		{name: "lease show ipv6", args: "lease show default fd00:5:0:4d::/64"},
		{name: "lease show address", args: "lease show 10.5.77.200"},
		{name: "lease show address json", args: "lease show default ::ffff:10.5.77.200 -json"},
		{name: "lease show public address", args: "lease show 192.0.2.34"},
		{name: "lease show strangers address", args: "lease show 198.51.100.1"},
		{name: "lease show json", args: "lease show 10.5.34.0-24 -format=json"},
		{name: "lease show missing", args: "lease show 10.5.99.0/24"},
		{name: "lease revoke", args: "lease revoke default 10.5.77.0/24 -token=t",
			writes: []string{"DELETE /v1/network/default/lease/10.5.77.0-24 t"}},
		{name: "lease revoke denied", args: "lease revoke 10.5.77.0/24", writes: []string{"DELETE /v1/network/default/lease/10.5.77.0-24 "},
			set: func(f *fakeAgent) {
				f.refuse = &api.Error{Code: 403, Message: "permission denied: key leno/leases/default/10.5.77.0-24: write"}
			}},
		{name: "lease renew", args: "lease renew -token=t", writes: []string{"PUT /v1/network/default/renew t"}},
		{name: "lease renew json", args: "lease renew -format=json", writes: []string{"PUT /v1/network/default/renew "}},
		{name: "lease renew lost", args: "lease renew", writes: []string{"PUT /v1/network/default/renew "},
			set: func(f *fakeAgent) {
				f.refuse = &api.Error{Code: 409, Message: "renew lease 10.5.34.0/24: the session has ended; the agent takes the lease back"}
			}},
		{name: "lease release", args: "lease release", writes: []string{"PUT /v1/network/default/release "}},
		{name: "reservation list", args: "reservation list"},
		{name: "reservation list left", args: "reservation list old", set: func(f *fakeAgent) { f.left = f.reservations }},
		{name: "network plan left", args: "network plan testdata/change.hcl", set: func(f *fakeAgent) { f.plans["green"] = planLeft(f) }},
		{name: "network apply left", args: "network apply testdata/change.hcl", set: func(f *fakeAgent) { f.plans["green"] = planLeft(f) },
			writes: []string{"PUT /v1/network/green "}},
		{name: "reservation list none", args: "reservation list", set: func(f *fakeAgent) { f.reservations = nil }},
		{name: "reservation list json", args: "reservation list -format=json"},
		{name: "reservation add", args: "reservation add -node=host-b 10.5.40.0/24",
			writes: []string{"PUT /v1/network/default/reservation/10.5.40.0-24 "}},
		{name: "reservation add conflict", args: "reservation add -node-id=x blue 10.9.4.0/24",
			set: func(f *fakeAgent) {
				f.refuse = &api.Error{Code: 409, Message: "10.9.4.0/24: reserved for another host"}
			},
			writes: []string{"PUT /v1/network/blue/reservation/10.9.4.0-24 "}},
		{name: "reservation add held", args: "reservation add -node=host-b 10.5.77.0/24",
			set: func(f *fakeAgent) {
				f.refuse = &api.Error{Code: 409, Message: `reserve 10.5.77.0/24 in network default: held by another host: "host-c" (192.0.2.77, node id 6f1c) ` +
					"holds 10.5.77.0/24 and keeps it for as long as it lives; use force to reserve it anyway"}
			},
			writes: []string{"PUT /v1/network/default/reservation/10.5.77.0-24 "}},
		{name: "reservation add forced", args: "reservation add -force -node=host-b 10.5.77.0/24",
			writes: []string{"PUT /v1/network/default/reservation/10.5.77.0-24?force=true "}},
		{name: "reservation remove", args: "reservation remove 10.5.40.0/24",
			writes: []string{"DELETE /v1/network/default/reservation/10.5.40.0-24 "}},
		{name: "peers", args: "peers"},
		{name: "peers none", args: "peers", set: func(f *fakeAgent) { f.peers = nil }},
		{name: "peers none but strangers", args: "peers", set: func(f *fakeAgent) {
			f.peers, f.strays = nil, map[string]uint64{"rx_unknown_peer": 7}
		}},
		{name: "peers totals", args: "peers", set: func(f *fakeAgent) {
			f.totals = &api.Counters{RxBytes: 1_600_000, TxBytes: 512}
		}},
		{name: "peers json", args: "peers -format=json"},
		{name: "peers counted", args: "peers default", set: func(f *fakeAgent) {
			f.peers[0].Counters = &api.Counters{RxBytes: 1_600_000, TxBytes: 512, Drops: map[string]uint64{"rx_foreign_source": 3, "rx_truncated": 0}}
			f.strays = map[string]uint64{"rx_unknown_peer": 12, "tx_no_peer": 1}
			f.peers = append(f.peers, api.Peer{Node: longName, Subnets: []netip.Prefix{prefix("10.5.90.0/24")},
				PublicIPs: []netip.Addr{addr("203.0.113.90")}, Backend: "udp", Skipped: "its host runs backend udp, this one vxlan"})
		}},
		{name: "peers encrypted", args: "peers default", set: func(f *fakeAgent) {
			f.peers[0].Backend, f.peers[0].Encrypted, f.peers[0].Counters = "wireguard", true, &api.Counters{RxBytes: 92, TxBytes: 512}
			f.peers[0].LastHandshake = now.Add(-83 * time.Second)
			f.peers[0].Endpoint = netip.MustParseAddrPort("192.168.7.2:51820")
			never := f.peers[0]
			never.Endpoint = netip.MustParseAddrPort("203.0.113.4:51830")
			never.Node, never.LastHandshake, never.Counters = "host-d", time.Time{}, &api.Counters{TxBytes: 148}
			f.peers = append(f.peers, never)
		}},
		{name: "peers paths", args: "peers default", set: func(f *fakeAgent) {
			f.peers[0].Path = &api.PeerPath{State: api.PathReached, RTT: 0.00042, MTU: 1450}
			for i, p := range []api.PeerPath{
				{State: api.PathLossy, Loss: 0.2, Reason: "4 of the last 20 packets were lost"},
				{State: api.PathShort, MTU: 1400, Reason: "IPv4 packets above 1400 bytes are lost"},
				{State: api.PathLost, Reason: "no packet is answered"},
				{State: api.PathReached, RTT: 0.001, Reason: "only pings are known to pass, no UDP message from host-g arrives"},
				{},
			} {
				other := f.peers[0]
				p.Since = now.Add(-90 * time.Second)
				other.Node, other.Path = fmt.Sprintf("host-%c", 'd'+i), &p
				f.peers = append(f.peers, other)
			}
		}},
		{name: "peers probe", args: "peers -probe"},
		{name: "peers probe json", args: "peers default -probe -peer=host-b -count=3 -format=json"},
		{name: "peers probe none", args: "peers -probe", set: func(f *fakeAgent) { f.probe.Peers = nil }},
		{name: "peers probe faults", args: "peers -probe", set: faultyProbe},
		{name: "peers probe alloc", args: "peers -probe blue", set: func(f *fakeAgent) {
			for i, p := range f.probe.Peers {
				for range 4 {
					f.probe.Peers[i].Ways = append(f.probe.Peers[i].Ways, api.ProbedWay{Path: api.PathOverlay, To: p.Ways[0].To, NotProbed: "the backend alloc carries no packets"})
				}
			}
		}},
		{name: "peers probe without right", args: "peers -probe", set: func(f *fakeAgent) {
			f.refuseProbe = &api.Error{Code: 501, Message: "a probe needs CAP_NET_RAW, which this agent lacks"}
		}},
		{name: "status", args: "status"},
		{name: "status paths", args: "status", set: func(f *fakeAgent) {
			f.health.Networks[0].Checks = append(f.health.Networks[0].Checks, api.Check{Name: "paths", Status: api.Passing,
				Reason: "packets reach 2 of 2 hosts"})
		}},
		{name: "status json", args: "status -format=json"},
		{name: "status warning", args: "status", set: func(f *fakeAgent) {
			f.health.Status = api.Warning
			f.health.Checks[0] = api.Check{Name: "consul", Status: api.Warning, Since: now.Add(-200 * time.Second),
				Reason: "consul at 127.0.0.1:8500 does not answer: connect: connection refused; packets flow, nothing changes until it is back"}
		}},
		{name: "status differs", args: "status", set: func(f *fakeAgent) {
			f.networks[1].Local.Differs = []string{"backend.vni is 2, and 1 in the store"}
			f.health.Networks[0].Checks = append(f.health.Networks[0].Checks, api.Check{Name: "network", Status: api.Passing,
				Reason: "defined; the definition in Consul stays in force, and the block differs from it: " + f.networks[1].Local.Differs[0] +
					"; to change the network on all hosts, run: leno network apply /etc/leno.d/a-name-that-is-rather-long.hcl"})
		}},
		{name: "status differs in encryption", args: "status", set: func(f *fakeAgent) {
			f.networks[1].Local.Differs = []string{"encryption is not set, and required in the store"}
			f.health.Networks[0].Checks = append(f.health.Networks[0].Checks, api.Check{Name: "network", Status: api.Passing,
				Reason: "defined; the definition in Consul stays in force, and the block differs from it: " + f.networks[1].Local.Differs[0] +
					"; the network requires encryption and the block does not: correct the block in /etc/leno.d/default.hcl"})
		}},
		{name: "status critical", args: "status", set: func(f *fakeAgent) {
			f.health.Status, f.health.Ready = api.Critical, false
			f.health.Networks = append(f.health.Networks, api.NetworkHealth{Network: "green", Status: api.Critical, Checks: []api.Check{
				{Name: "lease", Status: api.Critical, Since: now.Add(-5 * time.Second), Reason: "waits for network \"green\" to be defined in Consul"}}})
		}},
		{name: "status no networks", args: "status", set: func(f *fakeAgent) { f.health.Networks, f.networks = nil, nil }},
		{name: "events", args: "events"},
		{name: "events of a network", args: "events default"},
		{name: "events json", args: "events -format=json"},
		{name: "events none", args: "events", set: func(f *fakeAgent) { f.events = nil }},
		{name: "events hostile", args: "events", set: func(f *fakeAgent) {
			f.events[0].Message = "\x1b[31m" + longName + strings.Repeat("x", 200) + "\n\u202eb"
		}},
		{name: "reload", args: "reload", writes: []string{"PUT /v1/agent/reload "}},
		{name: "reload refused", args: "reload", writes: []string{"PUT /v1/agent/reload "},
			set: func(f *fakeAgent) { f.refuse = &api.Error{Code: 409, Message: "a.hcl:3: Unsupported argument: x"} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeAgent(t)
			if tt.set != nil {
				tt.set(f)
			}
			args := strings.Fields(tt.args)
			got := world{env: map[string]string{"LENO_ADDRESS": f.url}, stdin: tt.stdin}.run(args...)
			golden(t, tt.name, got.transcript(args))
			if diff := cmp.Diff(tt.writes, f.requests); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			if strings.Contains(strings.ReplaceAll(tt.args, "=", " "), "-format json") {
				if got.code == 0 && !json.Valid([]byte(got.stdout)) {
					t.Error("not JSON")
				}
				return
			}
			fits80(t, got.stdout)
			if strings.ContainsRune(got.stdout, 0x1b) {
				t.Error("an escape reaches the terminal")
			}
		})
	}
}

func TestJSONOutputIsTheAPIs(t *testing.T) {
	f := newFakeAgent(t)
	w := world{env: map[string]string{"LENO_ADDRESS": f.url, "LENO_FORMAT": "json"}}
	for args, v := range map[string]any{
		"network list":            &api.NetworkList{},
		"network show":            &api.Network{},
		"lease list":              &api.LeaseList{},
		"lease show 10.5.34.0/24": &api.Lease{},
		"reservation list":        &api.ReservationList{},
		"peers":                   &api.PeerList{},
		"peers -probe":            &api.Probe{},
		"hosts":                   &api.HostList{},
		"doctor -all":             &hosts.Diagnosis{},
		"events":                  &api.EventList{},
		"status":                  &status.Output{},
		"version":                 &versionOutput{},
	} {
		got := w.run(strings.Fields(args)...)
		dec := json.NewDecoder(strings.NewReader(got.stdout))
		dec.DisallowUnknownFields()
		if err := dec.Decode(v); err != nil {
			t.Errorf("%s: %v\n%s", args, err, got.stdout)
		}
		if strings.Contains(got.stdout, "null") {
			t.Errorf("%s: a list or value is null:\n%s", args, got.stdout)
		}
	}
}
