package config

import (
	"net/netip"
	"slices"
	"time"
)

// The table of all settings: one row for each option and each block, in the order of config.hcl.example.

// Why a running agent cannot apply another value.
const (
	anotherHost     = "It would be a different host"
	anotherStore    = "It would be a different store"
	openConnections = "The connections to the store are open"
	openListener    = "The listener is open"
)

// networkText describes the block of a network.
const networkText = "A network that this host joins. You can add any number of blocks. The agent writes the plan and " +
	"the backend to the store if the network does not exist there yet. After that, the definition in the store is " +
	"authoritative, and the agent reports differences. To join an existing network, omit `ipv4`, `ipv6` and `backend`."

// settings returns the settings of c, without those of networks. checkNetwork checks the name of a network.
func (c *Config) settings(checkNetwork func(string) error) []Setting {
	return slices.Concat(
		[]Setting{
			{Name: "node_name", Field: text(&c.NodeName, "", CheckNodeName), Restart: anotherHost,
				Flag: "`name` of this host, unique in every network",
				Text: "This host's name in leases. It must be unique in every network. At most 255 bytes without " +
					"white space. `\"\"`: the Consul agent's node name, if that agent is on this host; otherwise the " +
					"host name."},
			{Name: "data_dir", Field: text(&c.DataDir, "/var/lib/leno", checkAbsolute), Restart: anotherHost,
				Flag: "`directory` for the node id and leases",
				Text: "The directory for the node ID, the state of networks, and keys, as an absolute path. Losing " +
					"it [has no effect](concepts/how-it-works.mdx#which-subnet-a-host-gets) as long as the node name " +
					"stays the same."},
		},
		c.Log.settings(),
		[]Setting{
			{Name: "enable_debug", Field: flag(&c.EnableDebug, false),
				Text: "Serves [profiles](api/index.mdx#profiles) of the agent's process at `/debug/pprof/` of its " +
					"API."},
			{Name: "watch_networks", Field: flag(&c.WatchNetworks, false),
				Text: "Also joins every network that appears in the store."},
			{Name: "allowed_networks", Field: texts(&c.AllowedNetworks, []string{"*"}, checkPattern),
				Text: "Patterns (`*`, `?`, `[a-z]`) for `watch_networks`. The name of a network must match one of " +
					"them."},
			{Name: "probe_interval", Field: duration(&c.ProbeInterval, 10*time.Second),
				Text: "How often the agent tests whether packets [reach each other host](operations/probe.mdx). In " +
					"large networks, it tests less often. `\"0s\"` turns the tests off."},
		},
		block("consul", "How to reach Consul, the default store. Environment variables such as `CONSUL_HTTP_ADDR` "+
			"and `CONSUL_HTTP_TOKEN` apply where an option is `\"\"`.", c.Consul.settings()),
		optionalBlock("etcd", "Stores networks, leases and reservations in etcd instead of Consul, in flannel's own "+
			"keys: hosts with leno and hosts with flanneld then share a network. An agent has only one of the blocks "+
			"`consul`, `etcd` and `kubernetes`.", c.Etcd.settings(checkNetwork)),
		optionalBlock("kubernetes", "Stores leases in the Node objects of Kubernetes instead of Consul, as flannel "+
			"does with `-kube-subnet-mgr`: hosts with leno and hosts with flanneld then share the network. "+
			"Kubernetes assigns the subnets.", c.Kubernetes.settings(checkNetwork)),
		block("lease", "How this host keeps its subnets.", c.Lease.settings()),
		block("underlay", "The interface that carries traffic between hosts. The first match wins, in the order of "+
			"the options. If no option is set, the agent uses the interface of the default route. If options are set "+
			"and none matches, the agent waits and lists the candidates.", c.Underlay.settings()),
		block("firewall", "How the agent manages this host's rules for the network options `ip_masq` and `forward`.",
			c.Firewall.settings()),
		block("http", "The agent's HTTP API.", c.HTTP.settings()),
		block("telemetry", "Where metrics go.", c.Telemetry.settings()),
	)
}

func (l *Log) settings() []Setting {
	return []Setting{
		{Name: "log_level", Field: level(&l.Level, "INFO", "TRACE", "DEBUG", "INFO", "WARN", "ERROR"),
			Flag: "`level`: trace, debug, info, warn or error",
			Text: "`TRACE`, `DEBUG`, `INFO`, `WARN` or `ERROR`, in upper or lower case."},
		{Name: "log_json", Field: flag(&l.JSON, false), Text: "Logs one JSON object per line."},
		{Name: "log_file", Field: text(&l.File, "", optional(checkAbsolute)),
			Text: "A [file](operations/log.mdx) to log to in addition to standard error, as an absolute path. The " +
				"agent reopens it on reload."},
		{Name: "log_rotate_bytes", Field: count(&l.RotateBytes),
			Text: "Rotates the file before it becomes larger than this. 0 means 100 MiB."},
		{Name: "log_rotate_duration", Field: duration(&l.RotateDuration, 0),
			Text: "Rotates the file when it is this old. 0 disables rotation by age."},
		{Name: "log_rotate_max_files", Field: count(&l.RotateMaxFiles),
			Text: "The number of rotated files to keep. 0 keeps all."},
	}
}

func (c *Consul) settings() []Setting {
	login := &c.Login
	return slices.Concat(
		[]Setting{
			{Name: "address", Field: text(&c.Address, "", optional(checkConsulAddress)), Restart: anotherStore,
				Flag: "`address` of Consul: host:port, http(s)://host:port or unix:///path",
				Text: "`host:port`, `http(s)://host:port` or `unix:///path`. Without a scheme, the agent uses TLS if there " +
					"is a `tls` block, even an empty one, or if `CONSUL_HTTP_SSL` is `true`. `\"\"`: from the environment, " +
					"otherwise 127.0.0.1:8500."},
			{Name: "token", Field: text(&c.Token, "", checkToken), Secret: true,
				Text: "The ACL token, or the file that contains it, but not both. The agent reads the file again on " +
					"reload and when Consul rejects the token."},
			{Name: "token_file", Field: text(&c.TokenFile, "", checkTokenFile), Flag: "`file` to read Consul's ACL token from"},
			{Name: "kv_prefix", Field: text(&c.KVPrefix, "leno", checkKVPrefix), Restart: anotherStore,
				Text: "The prefix of all keys, which must be the same on all hosts of a network. Lower-case letters, " +
					"digits, `.`, `_` and `-`, with single slashes between names and no slash at its ends; no name " +
					"may be `.` or `..`."},
			{Name: "service", Field: text(&c.Service, "leno", checkService),
				Text: "The name of the service in the catalog, with a [check](operations/health.mdx). At most 63 " +
					"letters, digits and `-`. `\"\"` disables the registration."},
			{Name: "datacenter", Field: text(&c.Datacenter, ""), Restart: anotherStore,
				Text: "The datacenter whose Consul servers store the networks. The Consul agent at `address` must be " +
					"in it. `\"\"`: the Consul agent's datacenter."},
			{Name: "namespace", Field: text(&c.Namespace, ""), Restart: anotherStore, Text: "Consul Enterprise only."},
			{Name: "partition", Field: text(&c.Partition, ""), Restart: anotherStore},
		},
		optionalBlock("login", "Gets the ACL token from Consul with a JWT, instead of `token` and `token_file`. The "+
			"agent replaces the token before it expires, and logs out when it stops.", []Setting{
			{Name: "auth_method", Field: text(&login.AuthMethod, ""), Example: `"nomad-workloads"`,
				Text: "The name of an auth method of the type `jwt`, and the file that contains the JWT, for a " +
					"[login](operations/access-control.mdx#without-a-token-on-the-host). Set both options together."},
			{Name: "bearer_token_file", Field: text(&login.BearerTokenFile, "", checkBearerTokenFile),
				Example: `"/secrets/nomad_consul.jwt"`},
			{Name: "meta", Field: textMap(&login.Meta), Example: `{ host = "host-a" }`,
				Text: "Names and values that Consul shows in the description of the token, such as `{ host = " +
					"\"host-a\" }`."},
		}),
		optionalBlock("tls", tlsText, c.TLS.settings("Consul")),
	)
}

// tlsText describes the tls block of a store.
const tlsText = "Uses TLS for connections to the store."

// settings returns the settings of connections to a server.
func (t *TLS) settings(server string) []Setting {
	return []Setting{
		{Name: "ca_file", Field: text(&t.CAFile, ""), Restart: openConnections,
			Text: "Verifies " + server + "'s certificate. `\"\"`: the system's list of authorities."},
		{Name: "cert_file", Field: text(&t.CertFile, ""), Restart: openConnections,
			Text: "The client certificate for " + server + " and its key, read for each connection. Set both together."},
		{Name: "key_file", Field: text(&t.KeyFile, ""), Restart: openConnections},
		{Name: "server_name", Field: text(&t.ServerName, ""), Restart: openConnections,
			Text: "The name expected in " + server + "'s certificate. `\"\"`: the host of the address."},
	}
}

func (e *Etcd) settings(checkNetwork func(string) error) []Setting {
	return slices.Concat(
		[]Setting{
			{Name: "endpoints", Field: endpoints(&e.Endpoints, "http://127.0.0.1:2379"), Restart: anotherStore,
				Text: "The etcd servers, each as `host:port` or `http(s)://host:port`. Without a scheme, the agent " +
					"uses TLS if there is a `tls` block, even an empty one. All servers use TLS, or none of them."},
			{Name: "prefix", Field: text(&e.Prefix, "/coreos.com/network", checkEtcdPrefix), Restart: anotherStore,
				Text: "The prefix of flannel's keys, the same as `-etcd-prefix` of flanneld. It begins with a slash, " +
					"with single slashes between names, and does not end with one."},
			{Name: "network", Field: text(&e.Network, "default", checkNetwork), Restart: anotherStore,
				Text: "The network that is stored in flannel's keys. Flannel ignores other networks."},
			{Name: "username", Field: text(&e.Username, "", checkUsername),
				Text: "The user, if etcd requires authentication. Set it together with one of the next two options."},
			{Name: "password", Field: text(&e.Password, "", checkPassword), Secret: true,
				Text: "The password, or the file that contains it as its only line, but not both. The agent reads " +
					"the file again on reload."},
			{Name: "password_file", Field: text(&e.PasswordFile, "")},
		},
		optionalBlock("tls", tlsText, e.TLS.settings("etcd")),
	)
}

func (k *Kubernetes) settings(checkNetwork func(string) error) []Setting {
	return []Setting{
		{Name: "kubeconfig", Field: text(&k.Kubeconfig, ""), Restart: anotherStore,
			Text: "The file with the API server's address and credentials. `\"\"`: the service account of the " +
				"agent's pod, or outside a pod what `kubectl` uses."},
		{Name: "node_name", Field: text(&k.NodeName, "", optional(checkKubernetesName)), Restart: anotherStore,
			Text: "The name of this host's Node. `\"\"`: the environment variable `NODE_NAME`. The name is also this " +
				"host's name in leno, unless the general option `node_name` is set."},
		{Name: "network", Field: text(&k.Network, "default", checkNetwork), Restart: anotherStore,
			Text: "The name that leno gives to the network. There is one."},
		{Name: "net_conf", Field: text(&k.NetConf, "/etc/kube-flannel/net-conf.json", checkAbsolute), Restart: anotherStore,
			Text: "The absolute path of flannel's configuration. The agent follows changes."},
		{Name: "config_map", Field: text(&k.ConfigMap, "", optional(checkConfigMap)), Restart: anotherStore,
			Text: "The ConfigMap with this configuration, instead of `net_conf`: `namespace/name` such as " +
				"`kube-flannel/kube-flannel-cfg`, or `namespace/name/key` if the key is not `net-conf.json`. The " +
				"agent reads it every 30 s and needs the [right to get it](integrations/kubernetes.mdx#rights)."},
		{Name: "annotation_prefix", Restart: anotherStore,
			Field: text(&k.AnnotationPrefix, "flannel.alpha.coreos.com", checkKubernetesName),
			Text:  "The prefix of flannel's annotations, the same as `-kube-annotation-prefix` of flanneld."},
	}
}

func (l *Lease) settings() []Setting {
	return []Setting{
		{Name: "ttl", Field: duration(&l.TTL, defaultTTL),
			Text: "The TTL of the Consul session that holds a lease, 10s to 24h, and at least `session_ttl_min` of " +
				"Consul's servers."},
		{Name: "renew_margin", Field: duration(&l.RenewMargin, defaultRenewMargin(defaultTTL)),
			Text: "The agent renews the session when `ttl` - `renew_margin` has passed. More than 0, at most nine " +
				"tenths of `ttl`. Default: two thirds of `ttl`."},
		{Name: "hold", Field: duration(&l.Hold, 24*time.Hour),
			Text: "How long a lapsed lease is kept for its host before another host may take the subnet; at least " +
				"twice `ttl`. Default: 24h, or twice `ttl` if that is more."},
		{Name: "on_lost", Field: choice(&l.OnLost, OnLostRenumber, OnLostRenumber, OnLostExit),
			Text: "What to do when this host's lease was revoked or another host has the subnet: `renumber` takes " +
				"another one, `exit` ends the agent after it has taken another one. In both cases, you need to " +
				"restart the containers."},
		{Name: "release_on_stop", Field: flag(&l.ReleaseOnStop, false),
			Text: "Leaves the networks when the agent stops, and releases the subnets. For hosts that do not return."},
		{Name: "start_from_saved", Field: flag(&l.StartFromSaved, false),
			Text: "Lets containers start with the saved subnet before the store has confirmed it. For hosts that " +
				"must boot [without network](concepts/how-it-works.mdx#boot-without-the-store)."},
	}
}

func (u *Underlay) settings() []Setting {
	return []Setting{
		{Name: "interfaces", Field: texts(&u.Interfaces, nil, checkInterface),
			Text: "A list of names or addresses, such as `[\"bond0\", \"192.0.2.10\"]`."},
		{Name: "interface_regex", Field: texts(&u.InterfaceRegex, nil, checkRegex),
			Text: "A list of regular expressions that match names or addresses, such as `[\"^eth\", " +
				"\"^10\\\\.1\\\\.\"]`."},
		{Name: "can_reach", Field: address(&u.CanReach),
			Text: "An address, such as `\"192.0.2.1\"`, to which the interface has the route."},
		{Name: "public_ip", Field: text(&u.PublicIP, "", checkPublicIP(false)),
			Text: "The address that other hosts send to: an address or a go-sockaddr template. `\"\"`: the " +
				"interface's own address."},
		{Name: "public_ipv6", Field: text(&u.PublicIPv6, "", checkPublicIP(true))},
		{Name: "public_ports", Field: ports(&u.PublicPorts),
			Text: "For hosts that share a public address behind a NAT: maps every port on which this host receives to " +
				"the UDP port of `public_ip` that the NAT forwards to it, such as `{ 51820 = 51830 }`."},
	}
}

func (f *Firewall) settings() []Setting {
	return []Setting{
		{Name: "type", Field: choice(&f.Type, FirewallAuto, FirewallAuto, FirewallIPTables, FirewallNFTables),
			Text: "`auto` takes `iptables`, if it is installed and works, so that the rules are in the same tables " +
				"as Docker's. Otherwise it uses `nftables`, which needs no program."},
		{Name: "resync", Field: duration(&f.Resync, 20*time.Second, checkResync),
			Text: "The interval at which the agent checks the rules; 1s to 1h."},
		{Name: "random_fully", Field: flag(&f.RandomFully, true),
			Text: "Masquerades with random source ports if the program and the kernel support it. With sequential " +
				"ports, simultaneous connections can lose their first packet."},
	}
}

func (h *HTTP) settings() []Setting {
	return slices.Concat(
		[]Setting{
			{Name: "address", Field: text(&h.Address, "127.0.0.1:5366", checkListenAddress), Restart: openListener,
				Flag: "`address` for the agent's API: host:port or unix:///path",
				Text: "`host:port`, or a socket: `unix:///run/leno/leno.sock`, for its owner and group (mode 0660). " +
					"The path of a socket has at most 107 bytes."},
			{Name: "socket", Field: text(&h.Socket, DefaultSocket, optional(checkSocket)), Restart: openListener,
				Text: "The path of one more socket for the API, which [commands on this " +
					"host](commands/index.mdx#the-address-of-the-agent) use. Its owner and its group can use it " +
					"(mode 0660). `\"\"` turns it off. At most 107 bytes."},
			{Name: "allowed_hosts", Field: texts(&h.AllowedHosts, nil, checkHostPattern),
				Text: "Names that requests may use in addition to IP addresses, `localhost` and this host's own " +
					"names, such as `[\"leno.example.com\", \"*.internal\"]`. `*.` matches one or more labels. A " +
					"name has no port."},
		},
		block("tls", "", []Setting{
			{Name: "ca_file", Field: text(&h.TLS.CAFile, ""), Restart: openListener,
				Text: "Accepts only clients with a certificate from this authority; needs `cert_file` and " +
					"`key_file`. The agent reads the file again on reload."},
			{Name: "cert_file", Field: text(&h.TLS.CertFile, ""), Restart: openListener,
				Text: "The API uses HTTPS with both, with TLS 1.2 or newer. The agent reads the files again on " +
					"reload."},
			{Name: "key_file", Field: text(&h.TLS.KeyFile, ""), Restart: openListener},
		}),
	)
}

func (t *Telemetry) settings() []Setting {
	return []Setting{
		{Name: "prometheus_retention", Field: duration(&t.PrometheusRetention, time.Hour),
			Text: "How long counters and timers of a network that the host left are kept. `\"0s\"` turns the format off."},
		{Name: "address", Field: text(&t.Address, "", optional(checkHostPort)),
			Text: "The `host:port` at which `/metrics`, and nothing else, is served as well, or `\"\"` for none."},
		{Name: "statsd_address", Field: text(&t.StatsdAddress, "", optional(checkHostPort)),
			Text: "The `host:port` to send metrics to, or `\"\"` for none."},
		{Name: "dogstatsd_address", Field: text(&t.DogstatsdAddress, "", optional(checkHostPort))},
		{Name: "disable_hostname", Field: flag(&t.DisableHostname, false),
			Text: "Omits the host name from the names of gauges for statsd."},
	}
}

// settings returns the settings of a network. Its pools are compared as one, and read with those of poolSettings.
func (n *Network) settings(name string) []Setting {
	return below("network."+name, []Setting{
		{Name: "ipv4/ipv6", Field: whole(&n.Pools)},
		{Name: "backend", Field: whole(&n.Backend),
			Text: "How packets travel between hosts: `vxlan`, `host-gw`, `udp`, `wireguard` or `alloc` (leases " +
				"only), with the options of that [backend](backends.mdx)."},
		{Name: "encryption", Field: choice(&n.Encryption, "", "", EncryptionRequired),
			Text: "`\"required\"`: no host sends a packet of the network " +
				"[unencrypted](backends.mdx#require-encryption). The backend must be `wireguard`."},
		{Name: "ip_masq", Field: flag(&n.IPMasq, false),
			Text: "Masquerades packets from this host's subnet that leave the network."},
		{Name: "forward", Field: flag(&n.Forward, true),
			Text: "Accepts forwarded packets from and to the network (Docker sets the policy to DROP) and keeps " +
				"forwarding in the kernel enabled."},
		{Name: "routing_rule_priority", Field: priority(&n.RulePriority),
			Text: "The priority of a routing rule for each pool, `to POOL lookup main`, 1 to 32765. It must be " +
				"smaller than that of a rule of [another program, such as a VPN " +
				"client](operations/host-faults.mdx#routing-rules-of-other-programs). 0: no rules. No effect with " +
				"`alloc`."},
		{Name: "subnet_file", Field: text(&n.SubnetFile, DefaultSubnetFile(name), checkAbsolute),
			Text: "The file for container runtimes, as an absolute path, and a different one for each network. The " +
				"agent restores it within a second if it is removed or changed."},
	})
}

// A family holds what differs between the blocks ipv4 and ipv6 of a network.
type family struct {
	name, block string // "IPv4", "ipv4"
	has         func(netip.Addr) bool

	text, lengths               string // of the block and of subnet_len
	prefix, length, first, last string // examples
}

var ipv4 = family{"IPv4", "ipv4", netip.Addr.Is4,
	"At least one of `ipv4` and `ipv6` defines the network. With both, every host gets a subnet of each.",
	"room for at least four subnets, at most 30. Default: 24, or two bits longer than the prefix if that is more.",
	`"10.5.0.0/16"`, "24", `"10.5.1.0"`, `"10.5.255.0"`}

var ipv6 = family{"IPv6", "ipv6", netip.Addr.Is6, "IPv6, in addition to `ipv4` or alone.",
	"at most 126, and no more than 2^32 subnets. Default: 64, or two bits longer than the prefix if that is more.",
	`"fd00:5::/48"`, "64", `"fd00:5:0:1::"`, `"fd00:5:0:ffff::"`}

// settings returns the block of a family in a network with its settings.
func (p *Pool) settings(network string, f family) []Setting {
	settings := []Setting{
		{Name: "prefix", Field: prefix(&p.Prefix, f), Example: f.prefix,
			Text: "The address range of the whole network, without host bits."},
		{Name: "subnet_len", Field: count(&p.SubnetLen), Example: f.length,
			Text: "The length of each host's subnet: " + f.lengths},
		{Name: "min", Field: address(&p.Min), Example: f.first,
			Text: "The first and the last subnet for hosts, by their first addresses. Default: all but the first " +
				"subnet. With both families, hosts use the positions that are in both ranges."},
		{Name: "max", Field: address(&p.Max), Example: f.last},
	}
	pool := block(f.block, f.text, settings)
	if f.block == "ipv6" {
		pool[0].Optional = true
	}
	return below("network."+network, pool)
}
