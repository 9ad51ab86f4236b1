package docpages

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent"
)

// showing returns the names of the tests that a page may name as evidence, as package.TestName.
func showing(t *testing.T) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	for _, pattern := range []string{"e2e/*/*_test.go", "agent/*_test.go", "agent/*/*_test.go", "agent/*/*/*_test.go",
		"backend/*/*_test.go", "command/*_test.go", "command/*/*_test.go",
		"registry/*_test.go", "registry/belief/*_test.go", "registry/consul/*_test.go", "registry/etcd/*_test.go", "registry/kubernetes/*_test.go"} {
		files, err := filepath.Glob(Root + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for _, name := range testNames(Source(t, strings.TrimPrefix(file, Root))) {
				tests[filepath.Base(filepath.Dir(file))+"."+name] = true
			}
		}
	}
	return tests
}

// TestDocumentationReasons checks that every row of the reasons for leno in README.md names tests
// that exist.
func TestDocumentationReasons(t *testing.T) {
	tests, list := showing(t), Rows(t, "README.md", "Why not flannel?")
	for _, row := range list {
		shown := Codes(row[len(row)-1])
		if len(shown) == 0 {
			t.Errorf("%s: no test shows that", row[0])
		}
		for _, name := range shown {
			if !tests[name] {
				t.Errorf("%s: there is no %s in e2e or agent", row[0], name)
			}
		}
	}
	if len(list) < 5 {
		t.Errorf("only %d rows: are they still found?", len(list))
	}
}

// TestDocumentationFailures checks that every row about an outage names tests that exist.
func TestDocumentationFailures(t *testing.T) {
	tests, named := showing(t), map[string]bool{}
	const path = "contributing/failures"
	explained, _, _ := strings.Cut(Source(t, Path(path)), "\n## ")
	for _, heading := range Found(t, Path(path), `(?m)^## (.+)$`) {
		for _, row := range Rows(t, Path(path), heading) {
			if len(row) != 2 || row[0] == "" {
				t.Errorf("%s: the row is not an outage and its tests: %q", row[0], row)
				continue
			}
			shown := Codes(row[1])
			if len(shown) == 0 {
				t.Errorf("%s: no test shows that", row[0])
			}
			for _, name := range shown {
				named[name] = true
				for _, unit := range []string{"agent.", "network.", "lease.", "peers.", "report.", "belief.", "consul.", "etcd.", "kubernetes.TestContract"} {
					if strings.HasPrefix(name, unit) && !strings.Contains(explained, "`"+unit+"`") {
						t.Errorf("the page does not say what %s lacks", name)
					}
				}
				if !tests[name] {
					t.Errorf("%s: there is no %s in e2e, agent or registry", row[0], name)
				}
			}
		}
	}
	for _, name := range []string{"store.TestConsulStopped", "store.TestConsulClientRestarted", "datapath.TestAgentKilled", "store.TestMalformedRecords",
		"store.TestOwnRecordOverwritten", "store.TestQuorumLost", "access.TestTokenLost", "store.TestConsulEmptied", "store.TestHostCutOff", "store.TestBootedHost", "store.TestLeaveAndDeath", "store.TestLastSubnet", "store.TestDuplicateHosts", "datapath.TestDeviceDeleted", "store.TestWaiting",
		"store.TestEtcd", "store.TestEtcdQuorumLost", "etcd.TestPaused", "etcd.TestLeaderLost", "etcd.TestSnapshotRestored",
		"kubernetes.TestKubernetes", "kubernetes.TestContract", "etcd.TestRoleRevoked", "etcd.TestCertificateExpired", "etcd.TestCompactedWhileDisconnected"} {
		if !named[name] {
			t.Errorf("no row names %s", name)
		}
	}
}

// TestDocumentationSecurity checks that a test shows every row of the security model.
func TestDocumentationSecurity(t *testing.T) {
	shown := map[string][]string{
		"Inject packets into the tunnel of its own host or another one":                                                                 {"datapath.TestAttackingContainer"},
		"Receive what other hosts send to its own host":                                                                                 {"datapath.TestAttackingContainer"},
		"Keep `leno-cni` from removing the container":                                                                                   {"cni.TestLiar"},
		"Send plain packets to containers with the address of a container":                                                              {"datapath.TestStrangerOnTheUnderlay"},
		"Send plain packets to containers from its own address, if the host drops what is not accepted (`FORWARD` has the policy DROP)": {"datapath.TestStrangerOnTheUnderlay"},
		"The same with the policy ACCEPT":                                                                                               {"datapath.TestStrangerOnTheUnderlay"},
		"Read packets between hosts":                                                                                                    {"datapath.TestRequiredEncryption"},
		"Send packets to the port of a tunnel":                                                                                          {"datapath.TestStrangerOnTheUnderlay"},
		"Bind the agent's abstract socket, or lock files in the state directory, to keep the agent from starting":                       {"state.TestLockOfAStranger", "state.TestLockFileIsPrivate"},
		"Listen at the agent's address while no agent runs, to get a token":                                                             {"command.TestTokenIsNotSentToAStranger"},
		"The same, to make root use a subnet file or words of the user (`leno docker-opts`, `leno-cni`)":                                {"command.TestDockerOptsBelievesNoStranger", "cni.TestLiar"},
		"Inject packets into the tunnel of another host":                                                                                {"datapath.TestAttackingContainer"},
		"Change the definition of a network, to interrupt or redirect its packets":                                                      {"httpapi.TestWritesAreMadeUnderTheCallersToken", "httpapi.TestForce"},
		"Name a `key_file` in a definition, to make hosts write files outside of leno's directories":                                    {"wireguard.TestBadKeys"},
		"Write a lease that names another host, to get its packets":                                                                     {"store.TestStrangerWithASession", "store.TestStrangerTakesMAC"},
		"Flag the key `leno/leases/NETWORK/_` in Consul after a loss":                                                                   {"consul.TestSettled"},
		"Change anything without the right to write":                                                                                    {"httpapi.TestWritesAreMadeUnderTheCallersToken", "consul.TestDefaultTokenIsNotLent"},
		"Use the agent's socket in `/run/leno`":                                                                                         {"httpapi.TestSocketBesideAddress", "httpapi.TestSocketOfTheGroup"},
		"Create a socket for commands of other users, to get a token":                                                                   {"trusted.TestCheckSocket"},
	}
	tests, path := showing(t), Path("operations/security")
	for _, heading := range []string{"A container", "A stranger on the underlay", "A local user", "The holder of a token"} {
		for _, row := range Rows(t, path, heading) {
			if len(shown[row[0]]) == 0 {
				t.Errorf("%s: no test shows that", row[0])
			}
			for _, name := range shown[row[0]] {
				if !tests[name] {
					t.Errorf("%s: there is no %s", row[0], name)
				}
			}
			delete(shown, row[0])
		}
	}
	for row := range shown {
		t.Errorf("%s: no row %q", path, row)
	}
}

// A limit holds values of an option that the loader accepts and refuses, and the words for the
// limit on the page.
type limit struct {
	takes, refuses []string
	says           string
}

// limits returns the limit of every option. An option without limits of its own still has a type.
func limits() map[string]limit {
	host := []string{`"nothing"`, `"host:0"`, `"host:65536"`}
	text := limit{takes: []string{`"x"`}, refuses: []string{`[1]`}}
	flag := limit{takes: []string{"true", "false"}, refuses: []string{`"maybe"`, "7"}}
	count := limit{takes: []string{"0", "5"}, refuses: []string{"-1", `"many"`}}
	addr := limit{takes: []string{`"192.0.2.1:8125"`}, refuses: host, says: "host:port"}
	return map[string]limit{
		"node_name":            {takes: []string{`"host-a"`}, refuses: []string{`"host a"`, `"` + strings.Repeat("x", 256) + `"`}, says: "255 bytes without white space"},
		"data_dir":             {takes: []string{`"/srv/leno"`}, refuses: []string{`"leno"`}, says: "absolute"},
		"log_level":            {takes: []string{`"TRACE"`, `"ERROR"`}, refuses: []string{`"LOUD"`}, says: "`TRACE`, `DEBUG`, `INFO`, `WARN` or `ERROR`"},
		"enable_debug":         flag,
		"log_json":             flag,
		"log_file":             {takes: []string{`"/var/log/leno.log"`}, refuses: []string{`"leno.log"`}, says: "absolute"},
		"log_rotate_bytes":     count,
		"log_rotate_duration":  {takes: []string{`"0s"`, `"24h"`}, refuses: []string{`"-1s"`, `24`}},
		"log_rotate_max_files": count,
		"watch_networks":       flag,
		"probe_interval":       {takes: []string{`"0s"`, `"30s"`}, refuses: []string{`"-1s"`, `10`}, says: "`\"0s\"` turns the tests off"},
		"allowed_networks":     {takes: []string{`["a*", "?[bc]"]`}, refuses: []string{`["["]`, `[""]`, `"*"`}, says: "`*`, `?`, `[a-z]`"},

		"consul.address":                 {takes: []string{`"192.0.2.1:8500"`, `"https://consul:8501"`, `"unix:///run/consul.sock"`}, refuses: []string{`"consul"`, `"ftp://consul:1"`, `"unix://run/x"`}, says: "`host:port`, `http(s)://host:port` or `unix:///path`"},
		"consul.token":                   text,
		"consul.token_file":              {takes: []string{`"/etc/leno.d/token"`}, refuses: []string{`[1]`}, says: "not both"},
		"consul.login.auth_method":       {refuses: []string{`"nomad-workloads"`}, says: "together"}, // no file
		"consul.login.bearer_token_file": {refuses: []string{`"/secrets/nomad_consul.jwt"`}, says: "together"},
		"consul.login.meta":              {refuses: []string{`["host"]`, `"host"`}, says: "such as `{ host"},
		"consul.kv_prefix":               {takes: []string{`"leno"`, `"net/leno"`, `"..."`}, refuses: []string{`""`, `"/leno"`, `"leno/"`, `"Leno"`, `"a//b"`, `"a:b"`, `"a b"`, `".."`, `"a/./b"`}, says: "no name may be `.` or `..`"},
		"consul.service":                 {takes: []string{`""`, `"leno-2"`}, refuses: []string{`"leno_2"`, `"-x"`, `"` + strings.Repeat("x", 64) + `"`}, says: "63 letters, digits and `-`"},
		"consul.datacenter":              text,
		"consul.namespace":               text,
		"consul.partition":               text,
		"consul.tls.ca_file":             {takes: []string{`"/etc/leno.d/ca.pem"`}, refuses: []string{`[1]`}},
		"consul.tls.cert_file":           {refuses: []string{`"/etc/leno.d/cert.pem"`}, says: "together"}, // no key file
		"consul.tls.key_file":            {refuses: []string{`"/etc/leno.d/key.pem"`}, says: "together"},
		"consul.tls.server_name":         text,

		"etcd.endpoints": {
			takes: []string{`["192.0.2.1:2379", "192.0.2.2:2379"]`, `["https://a:2379", "https://[fd00::1]:2379"]`},
			refuses: []string{`[]`, `"http://a:2379"`, `["etcd"]`, `["unix:///x"]`, `["http://a:1", "https://b:1"]`,
				`["http://a:1/x"]`},
			says: "`host:port` or `http(s)://host:port`",
		},
		"etcd.prefix": {
			takes:   []string{`"/x"`, `"/coreos.com/network"`},
			refuses: []string{`""`, `"/"`, `"x"`, `"/x/"`, `"/x//y"`, `"/x y"`},
			says:    "It begins with a slash",
		},
		"etcd.network":         {takes: []string{`"default"`, `"blue"`}, refuses: []string{`""`, `"Blue"`, `"a/b"`}},
		"etcd.username":        {refuses: []string{`"leno"`}, says: "together"}, // no password
		"etcd.password":        {refuses: []string{`"x"`}, says: "not both"},    // no user
		"etcd.password_file":   {refuses: []string{`"/etc/leno.d/etcd-password"`}, says: "not both"},
		"etcd.tls.ca_file":     {refuses: []string{`"/etc/leno.d/ca.pem"`}}, // the default endpoint has no TLS
		"etcd.tls.cert_file":   {refuses: []string{`"/etc/leno.d/cert.pem"`}, says: "together"},
		"etcd.tls.key_file":    {refuses: []string{`"/etc/leno.d/key.pem"`}, says: "together"},
		"etcd.tls.server_name": {refuses: []string{`"etcd"`}},

		"kubernetes.kubeconfig": text,
		"kubernetes.node_name":  {takes: []string{`"host-a.example.com"`}, refuses: []string{`"Host_A"`}},
		"kubernetes.network":    {takes: []string{`"default"`, `"blue"`}, refuses: []string{`""`, `"Blue"`, `"a/b"`}},
		"kubernetes.net_conf":   {takes: []string{`"/etc/net-conf.json"`}, refuses: []string{`""`}},
		"kubernetes.config_map": {
			takes:   []string{`"kube-flannel/kube-flannel-cfg"`, `"a/b/c.json"`},
			refuses: []string{`"kube-flannel-cfg"`, `"a/b/"`, `"a/b/c/d"`, `"A/b"`},
		},
		"kubernetes.annotation_prefix": {
			takes:   []string{`"example.com"`},
			refuses: []string{`""`, `"example.com/flannel"`},
		},

		"lease.ttl":             {takes: []string{`"10s"`, `"24h"`}, refuses: []string{`"9s"`, `"24h1s"`, `"soon"`, `10`}, says: "10s to 24h"},
		"lease.renew_margin":    {takes: []string{`"1s"`, `"108s"`}, refuses: []string{`"0s"`, `"109s"`, `"2m"`, `"-1s"`}, says: "More than 0, at most nine tenths of `ttl`"},
		"lease.hold":            {takes: []string{`"4m"`, `"720h"`}, refuses: []string{`"3m59s"`}, says: "at least twice `ttl`"},
		"lease.on_lost":         {takes: []string{`"renumber"`, `"exit"`}, refuses: []string{`"ignore"`}, says: "`renumber` takes another one, `exit` ends the agent"},
		"lease.release_on_stop": flag,

		"lease.start_from_saved": flag,

		"underlay.interfaces":      {takes: []string{`["eth0", "192.0.2.1"]`}, refuses: []string{`["sixteen-letters-"]`, `["a/b"]`}, says: "names or addresses"},
		"underlay.interface_regex": {takes: []string{`["^eth"]`}, refuses: []string{`["("]`, `[""]`}, says: "regular expressions"},
		"underlay.can_reach":       {takes: []string{`"192.0.2.1"`}, refuses: []string{`"gateway"`}, says: "address"},
		"underlay.public_ip":       {takes: []string{`"192.0.2.1"`, `"{{ GetInterfaceIP \"eth1\" }}"`}, refuses: []string{`"127.0.0.1"`, `"fd00::1"`, `"{{ Nothing }}"`}, says: "an address or a go-sockaddr template"},
		"underlay.public_ipv6":     {takes: []string{`"fd00::1"`}, refuses: []string{`"::1"`, `"192.0.2.1"`}, says: "an address or a go-sockaddr template"},

		"underlay.public_ports": {
			takes:   []string{`{}`},
			refuses: []string{`{ 51820 = 51830 }`, `{ 51820 = 0 }`, `{ 0 = 51830 }`, `{ x = 51830 }`, `[51830]`},
			says:    "to the UDP port of `public_ip`",
		},

		"firewall.type":         {takes: []string{`"iptables"`, `"nftables"`}, refuses: []string{`"ufw"`, `""`}, says: "`auto` takes `iptables`"},
		"firewall.resync":       {takes: []string{`"1s"`, `"1h"`}, refuses: []string{`"999ms"`, `"1h1s"`, `20`}, says: "1s to 1h"},
		"firewall.random_fully": flag,

		"http.address":       {takes: []string{`"0.0.0.0:5366"`, `"unix:///run/leno/leno.sock"`}, refuses: append(host, `"unix://leno.sock"`, `"unix:///`+strings.Repeat("x", 107)+`"`), says: "`host:port`, or a socket: `unix:///run/leno/leno.sock`"},
		"http.socket":        {takes: []string{`""`, `"/run/leno/2.sock"`}, refuses: []string{`"leno.sock"`, `"unix:///run/leno/leno.sock"`, `"/` + strings.Repeat("x", 107) + `"`}, says: "At most 107 bytes"},
		"http.allowed_hosts": {takes: []string{`["leno.example.com", "*.internal", "web1"]`}, refuses: []string{`["*"]`, `["leno.example.com:5366"]`, `["a.*.b"]`, `[""]`, `"x"`}, says: "A name has no port"},
		"http.tls.cert_file": {refuses: []string{`"/etc/leno.d/cert.pem"`}, says: "with both"},
		"http.tls.key_file":  {refuses: []string{`"/etc/leno.d/key.pem"`}, says: "with both"},
		"http.tls.ca_file":   {refuses: []string{`"/etc/leno.d/ca.pem"`}, says: "needs `cert_file` and `key_file`"},

		"telemetry.prometheus_retention": {takes: []string{`"0s"`, `"90s"`}, refuses: []string{`"-1s"`, `"long"`}, says: "`\"0s\"` turns the format off"},
		"telemetry.address":              addr,
		"telemetry.statsd_address":       addr,
		"telemetry.dogstatsd_address":    addr,
		"telemetry.disable_hostname":     flag,

		"network.routing_rule_priority": {takes: []string{"0", "1", "32765"}, refuses: []string{"-1", "32766", `"high"`}, says: "1 to 32765"},

		"network.ipv4.prefix":     {takes: []string{`"10.5.0.0/16"`, `"10.0.0.0/8"`}, refuses: []string{`"10.5.1.0/16"`, `"fd00::/48"`, `"169.254.0.0/16"`}, says: "without host bits"},
		"network.ipv4.subnet_len": {takes: []string{"18", "30"}, refuses: []string{"17", "31"}, says: "at least four subnets, at most 30"},
		"network.ipv4.min":        {takes: []string{`"10.5.0.0"`}, refuses: []string{`"10.5.1.1"`, `"10.6.0.0"`}, says: "by their first addresses"},
		"network.ipv4.max":        {takes: []string{`"10.5.64.0"`}, refuses: []string{`"10.5.64.1"`, `"10.6.0.0"`}, says: "by their first addresses"},
		"network.ipv6.prefix":     {takes: []string{`"fd00:5::/48"`}, refuses: []string{`"fd00:5::1/48"`, `"10.5.0.0/16"`, `"fe80::/48"`}, says: "without host bits"},
		"network.ipv6.subnet_len": {takes: []string{"50", "80"}, refuses: []string{"49", "81", "127"}, says: "at most 126"},
		"network.ipv6.min":        {takes: []string{`"fd00:5::"`}, refuses: []string{`"fd00:5::1"`}, says: "by their first addresses"},
		"network.ipv6.max":        {takes: []string{`"fd00:5:0:9::"`}, refuses: []string{`"fd00:6::"`}, says: "by their first addresses"},
		"network.encryption":      {takes: []string{`""`}, refuses: []string{`"optional"`, `"required"`}, says: "The backend must be `wireguard`"}, // it is vxlan
		"network.ip_masq":         flag,
		"network.forward":         flag,
		"network.subnet_file":     {takes: []string{`"/run/x.env"`}, refuses: []string{`"x.env"`}, says: "absolute"},
	}
}

// TestDocumentationOptions checks the limits of all options in the lists, which are generated, with the loader.
func TestDocumentationOptions(t *testing.T) {
	bounds := limits()
	for heading, prefix := range map[string]string{"General": "", "consul": "consul.", "etcd": "etcd.", "kubernetes": "kubernetes.", "lease": "lease.",
		"underlay": "underlay.",
		"firewall": "firewall.", "http": "http.", "telemetry": "telemetry.", "network": "network."} {
		_, section, _ := strings.Cut(Source(t, Path("configuration")), "\n## "+heading+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for _, row := range regexp.MustCompile("(?m)^- (`.+?) \\(.+?\\): (.+)$").FindAllStringSubmatch(section, -1) {
			for _, name := range Codes(row[1]) {
				if strings.HasPrefix(name, "backend ") {
					continue // a backend has its own options, on another page
				}
				path := prefix + name
				l, ok := bounds[path]
				if !ok || len(l.refuses) == 0 {
					t.Errorf("%s: no limits are tested", path)
				}
				delete(bounds, path)
				if !strings.Contains(row[2], l.says) {
					t.Errorf("%s: the page does not say %q", path, l.says)
				}
				for want, values := range map[bool][]string{true: l.takes, false: l.refuses} {
					for _, v := range values {
						if out, ok := validate(t, "hcl", withOption(path, v)); ok != want {
							t.Errorf("%s = %s: valid %t, want %t\n%s", path, v, ok, want, out)
						}
					}
				}
			}
		}
	}
	for path := range bounds {
		t.Errorf("configuration.mdx: no option %s", path)
	}
}

// withOption returns a configuration that sets one option.
func withOption(path, value string) string {
	parts := strings.Split(path, ".")
	name := parts[len(parts)-1]
	body := fmt.Sprintf("%s = %s\n", name, value)
	if parts[0] == "network" && len(parts) == 3 && name != "prefix" {
		body += fmt.Sprintf("prefix = %q\n", map[string]string{"ipv4": "10.5.0.0/16", "ipv6": "fd00:5::/48"}[parts[1]])
	}
	for _, part := range slices.Backward(parts[:len(parts)-1]) {
		if part == "network" {
			part += ` "default"`
		}
		body = part + " {\n" + body + "}\n"
	}
	return body
}

// TestDocumentationChanges compares the table of live changes with what the backends report for
// their options.
func TestDocumentationChanges(t *testing.T) {
	kinds := agent.Backends()
	table := Rows(t, Path("operations/networks"), "Change a network")
	for name, kind := range kinds {
		effective, err := kind.Normalize(nil)
		if err != nil {
			t.Fatal(err)
		}
		var options map[string]any
		if err := json.Unmarshal(effective, &options); err != nil {
			t.Fatal(err)
		}
		for option := range options {
			i := slices.IndexFunc(table, func(row []string) bool {
				named := Codes(row[0])
				others := slices.ContainsFunc(named, func(n string) bool { _, is := kinds[n]; return is && n != name })
				return slices.Contains(named, option) && !others
			})
			if i < 0 {
				t.Errorf("no row tells what happens when %s of %s changes", option, name)
				continue
			}
			if _, stops := kind.Interrupts[option]; (table[i][1] == "yes") == stops {
				t.Errorf("%s of %s: live %q on the page, stops packets %t", option, name, table[i][1], stops)
			}
		}
	}
}
