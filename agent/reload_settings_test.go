package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/ports"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// settingCase is a setting of the configuration, and what a reload does with it.
type settingCase struct {
	change func(a *host, c *config.Config)
	// seen returns an error unless the setting is in force. It is nil for a setting that needs a restart.
	seen func(a *host, c config.Config) error
}

// expect returns an error unless ok.
func expect(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func settingCases() map[string]settingCase {
	restart := func(change func(c *config.Config)) settingCase {
		return settingCase{change: func(_ *host, c *config.Config) { change(c) }}
	}
	// The settings of leases and of the underlay are the runners', which are started with them.
	lease := func(change func(l *config.Lease)) settingCase {
		return settingCase{func(_ *host, c *config.Config) { change(&c.Lease) }, func(a *host, c config.Config) error {
			run, ok := a.agent.networks.get("n")
			return expect(ok && run.Config().Lease == c.Lease, "the runner does not have %+v", c.Lease)
		}}
	}
	underlay := func(change func(u *config.Underlay)) settingCase {
		return settingCase{func(_ *host, c *config.Config) { change(&c.Underlay) }, func(a *host, c config.Config) error {
			a.mu.Lock()
			defer a.mu.Unlock()
			return expect(fmt.Sprint(a.selected) == fmt.Sprint(c.Underlay), "the underlay was chosen by %+v", a.selected)
		}}
	}
	firewall := func(change func(f *config.Firewall)) settingCase {
		return settingCase{func(_ *host, c *config.Config) { change(&c.Firewall) }, func(a *host, c config.Config) error {
			a.wall.mu.Lock()
			defer a.wall.mu.Unlock()
			last := a.wall.states[len(a.wall.states)-1]
			return expect(string(last.Type) == c.Firewall.Type && last.RandomFully == c.Firewall.RandomFully, "the firewall has %+v", last)
		}}
	}
	network := func(change func(n *config.Network)) settingCase {
		return settingCase{change: func(_ *host, c *config.Config) { change(&c.Networks[0]) }}
	}
	differs := func(change func(n *config.Network), field string) settingCase {
		out := network(change)
		out.seen = func(a *host, _ config.Config) error { // the definition in Consul stays in force
			n, err := a.client.Network(context.Background(), "n")
			return errors.Join(err, expect(n.Local != nil && strings.Contains(strings.Join(n.Local.Differs, ";"), field), "no difference %s: %+v", field, n.Local))
		}
		return out
	}
	subnetFile := func(change func(n *config.Network), line string) settingCase {
		out := network(change)
		out.seen = func(a *host, c config.Config) error {
			text, err := os.ReadFile(c.Networks[0].SubnetFile)
			return errors.Join(err, expect(strings.Contains(string(text), line), "%s", text))
		}
		return out
	}
	logged := func(change func(a *host, l *config.Log), seen func(a *host, c config.Config) error) settingCase {
		return settingCase{func(a *host, c *config.Config) { change(a, &c.Log) }, seen}
	}
	user := func(want string, change func(e *config.Etcd)) settingCase {
		return settingCase{func(_ *host, c *config.Config) { change(&c.Etcd) }, func(a *host, _ config.Config) error {
			return expect(slices.Equal(a.registry.Users(), []string{want}), "users %q", a.registry.Users())
		}}
	}
	login := func(change func(l *config.Login)) settingCase {
		return settingCase{func(_ *host, c *config.Config) {
			c.Consul.Login = config.Login{AuthMethod: "nomad-workloads", BearerTokenFile: "/secrets/nomad_consul.jwt"}
			change(&c.Consul.Login)
		}, func(a *host, c config.Config) error {
			got := a.registry.Logins()
			return expect(len(got) == 1 && got[0].Equal(registry.Login(c.Consul.Login)), "logins %+v", got)
		}}
	}
	return map[string]settingCase{
		"node_name":         restart(func(c *config.Config) { c.NodeName = "x" }),
		"data_dir":          restart(func(c *config.Config) { c.DataDir = "/x" }),
		"consul.address":    restart(func(c *config.Config) { c.Consul.Address = "x:1" }),
		"consul.kv_prefix":  restart(func(c *config.Config) { c.Consul.KVPrefix = "x" }),
		"consul.datacenter": restart(func(c *config.Config) { c.Consul.Datacenter = "x" }),
		"consul.namespace":  restart(func(c *config.Config) { c.Consul.Namespace = "x" }),
		"consul.partition":  restart(func(c *config.Config) { c.Consul.Partition = "x" }),

		"consul.tls.ca_file":     restart(func(c *config.Config) { c.Consul.TLS.CAFile = "/x" }),
		"consul.tls.cert_file":   restart(func(c *config.Config) { c.Consul.TLS.CertFile = "/x" }),
		"consul.tls.key_file":    restart(func(c *config.Config) { c.Consul.TLS.KeyFile = "/x" }),
		"consul.tls.server_name": restart(func(c *config.Config) { c.Consul.TLS.ServerName = "x" }),

		"http.address": restart(func(c *config.Config) { c.HTTP.Address = "127.0.0.1:1" }),
		"http.socket":  restart(func(c *config.Config) { c.HTTP.Socket = "/x" }),
		"http.allowed_hosts": {func(_ *host, c *config.Config) { c.HTTP.AllowedHosts = []string{"leno.example.com"} }, func(a *host, _ config.Config) error {
			handler, err := a.agent.http.Handler()
			if err != nil {
				return err
			}
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "http://leno.example.com/v1/networks", nil)
			handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{})))
			return expect(w.Code == http.StatusOK, "the name is not accepted: %d %s", w.Code, w.Body)
		}},
		// Only other paths need a restart. A reload takes over other content of these files, see TestTLS.
		"http.tls.ca_file":   restart(func(c *config.Config) { c.HTTP.TLS.CAFile = "/x" }),
		"http.tls.cert_file": restart(func(c *config.Config) { c.HTTP.TLS.CertFile = "/x" }),
		"http.tls.key_file":  restart(func(c *config.Config) { c.HTTP.TLS.KeyFile = "/x" }),

		"consul.token": {func(_ *host, c *config.Config) { c.Consul.Token = "another" }, func(a *host, _ config.Config) error {
			return expect(slices.Equal(a.registry.Tokens(), []string{"another"}), "tokens %q", a.registry.Tokens())
		}},
		"consul.token_file": {func(_ *host, c *config.Config) { c.Consul.TokenFile = "/etc/token" }, func(a *host, _ config.Config) error {
			return expect(slices.Equal(a.registry.Tokens(), []string{"/etc/token"}), "tokens %q", a.registry.Tokens())
		}},
		"consul.login.auth_method":       login(func(l *config.Login) {}),
		"consul.login.bearer_token_file": login(func(l *config.Login) { l.BearerTokenFile = "/secrets/other.jwt" }),
		"consul.login.meta":              login(func(l *config.Login) { l.Meta = map[string]string{"host": "a"} }),
		"consul.service": {func(_ *host, c *config.Config) { c.Consul.Service = "weave" }, func(a *host, _ config.Config) error {
			s, _ := a.catalog.(*serviceStore).last()
			return expect(s.Name == "weave" && s.ID == "weave-a", "registered is %+v", s)
		}},

		"kubernetes.kubeconfig":        restart(func(c *config.Config) { c.Kubernetes.Kubeconfig = "/x" }),
		"kubernetes.node_name":         restart(func(c *config.Config) { c.Kubernetes.NodeName = "x" }),
		"kubernetes.network":           restart(func(c *config.Config) { c.Kubernetes.Network = "x" }),
		"kubernetes.net_conf":          restart(func(c *config.Config) { c.Kubernetes.NetConf = "/x" }),
		"kubernetes.config_map":        restart(func(c *config.Config) { c.Kubernetes.ConfigMap = "x/y" }),
		"kubernetes.annotation_prefix": restart(func(c *config.Config) { c.Kubernetes.AnnotationPrefix = "x" }),

		"etcd.endpoints":       restart(func(c *config.Config) { c.Etcd.Endpoints = []string{"http://x:1"} }),
		"etcd.prefix":          restart(func(c *config.Config) { c.Etcd.Prefix = "/x" }),
		"etcd.network":         restart(func(c *config.Config) { c.Etcd.Network = "x" }),
		"etcd.tls.ca_file":     restart(func(c *config.Config) { c.Etcd.TLS.CAFile = "/x" }),
		"etcd.tls.cert_file":   restart(func(c *config.Config) { c.Etcd.TLS.CertFile = "/x" }),
		"etcd.tls.key_file":    restart(func(c *config.Config) { c.Etcd.TLS.KeyFile = "/x" }),
		"etcd.tls.server_name": restart(func(c *config.Config) { c.Etcd.TLS.ServerName = "x" }),
		"etcd.username":        user("leno:", func(e *config.Etcd) { e.Username = "leno" }),
		"etcd.password":        user("leno:x", func(e *config.Etcd) { e.Username, e.Password = "leno", "x" }),
		"etcd.password_file": {func(a *host, c *config.Config) {
			c.Etcd.Username, c.Etcd.PasswordFile = "leno", filepath.Join(a.t.TempDir(), "password")
			must(a.t, os.WriteFile(c.Etcd.PasswordFile, []byte("from a file\n"), 0o600))
		}, func(a *host, _ config.Config) error {
			return expect(slices.Equal(a.registry.Users(), []string{"leno:from a file"}), "users %q", a.registry.Users())
		}},

		"log_level": logged(func(_ *host, l *config.Log) { l.Level = "ERROR" }, func(a *host, _ config.Config) error {
			a.agent.log.Warn("after the level")
			return expect(len(a.said.With("after the level")) == 0, "a warning was logged")
		}),
		"log_json": logged(func(_ *host, l *config.Log) { l.JSON = true }, func(a *host, _ config.Config) error {
			a.agent.log.Warn("after the format")
			lines := a.said.With("after the format")
			return expect(json.Valid([]byte(lines[len(lines)-1])), "%s", lines)
		}),
		"log_file": logged(func(a *host, l *config.Log) { l.File = a.logFile() }, func(a *host, c config.Config) error {
			a.agent.log.Warn("into the file")
			text, err := os.ReadFile(c.Log.File)
			return errors.Join(err, expect(strings.Contains(string(text), "into the file"), "%s", text))
		}),
		"log_rotate_bytes": logged(func(a *host, l *config.Log) { l.File, l.RotateBytes = a.logFile(), 1 }, func(a *host, c config.Config) error {
			return a.rotated(c, func(n int) bool { return n > 0 })
		}),
		"log_rotate_duration": logged(func(a *host, l *config.Log) { l.File, l.RotateDuration = a.logFile(), time.Nanosecond }, func(a *host, c config.Config) error {
			return a.rotated(c, func(n int) bool { return n > 0 })
		}),
		"log_rotate_max_files": logged(func(a *host, l *config.Log) { l.File, l.RotateBytes, l.RotateMaxFiles = a.logFile(), 1, 2 }, func(a *host, c config.Config) error {
			return a.rotated(c, func(n int) bool { return n == 2 })
		}),

		"lease.ttl":             lease(func(l *config.Lease) { l.TTL = time.Minute }),
		"lease.renew_margin":    lease(func(l *config.Lease) { l.RenewMargin = 9 * time.Second }),
		"lease.hold":            lease(func(l *config.Lease) { l.Hold = time.Hour }),
		"lease.on_lost":         lease(func(l *config.Lease) { l.OnLost = config.OnLostExit }),
		"lease.release_on_stop": lease(func(l *config.Lease) { l.ReleaseOnStop = true }),

		"lease.start_from_saved": lease(func(l *config.Lease) { l.StartFromSaved = true }),

		"underlay.interfaces":      underlay(func(u *config.Underlay) { u.Interfaces = []string{"eth1"} }),
		"underlay.interface_regex": underlay(func(u *config.Underlay) { u.InterfaceRegex = []string{"^eth"} }),
		"underlay.can_reach":       underlay(func(u *config.Underlay) { u.CanReach = netip.MustParseAddr("192.0.2.1") }),
		"underlay.public_ip":       underlay(func(u *config.Underlay) { u.PublicIP = "192.0.2.9" }),
		"underlay.public_ipv6":     underlay(func(u *config.Underlay) { u.PublicIPv6 = "2001:db8::9" }),
		"underlay.public_ports":    underlay(func(u *config.Underlay) { u.PublicPorts = map[uint16]uint16{51820: 51830} }),

		"firewall.type":         firewall(func(f *config.Firewall) { f.Type = config.FirewallNFTables }),
		"firewall.random_fully": firewall(func(f *config.Firewall) { f.RandomFully = false }),
		"firewall.resync": {func(_ *host, c *config.Config) { c.Firewall.Resync = time.Second }, func(a *host, _ config.Config) error {
			looks, began := a.wall.looks(), time.Now()
			a.more("looks", looks+1, a.wall.looks)
			return expect(time.Since(began) < 10*time.Second, "two looks took %s", time.Since(began))
		}},

		"watch_networks": {func(_ *host, c *config.Config) { c.WatchNetworks = true }, func(a *host, _ config.Config) error {
			_, joined := a.agent.networks.get("watched")
			return expect(joined, "the network that is there was not joined")
		}},
		"probe_interval": {func(_ *host, c *config.Config) { c.ProbeInterval = 100 * time.Millisecond }, func(a *host, _ config.Config) error {
			return expect(a.agent.diagnostics.paths.Of("n") != nil, "no path is tested")
		}},
		"allowed_networks": {func(_ *host, c *config.Config) { c.WatchNetworks, c.AllowedNetworks = true, []string{"none*"} }, func(a *host, _ config.Config) error {
			_, joined := a.agent.networks.get("watched")
			return expect(!joined && a.agent.settings.get().WatchNetworks, "a network was joined that does not match")
		}},

		"network.*.ipv4/ipv6":   differs(func(n *config.Network) { n.Pools = []config.Pool{{Prefix: netip.MustParsePrefix("10.9.0.0/22")}} }, "ipv4.prefix is 10.9.0.0/22"),
		"network.*.backend":     differs(func(n *config.Network) { n.Backend = &config.Backend{Type: "other"} }, "backend"),
		"network.*.encryption":  differs(func(n *config.Network) { n.Encryption = config.EncryptionRequired }, "encryption is required"),
		"network.*.ip_masq":     subnetFile(func(n *config.Network) { n.IPMasq = true }, "LENO_IPMASQ=true"),
		"network.*.subnet_file": subnetFile(func(n *config.Network) { n.SubnetFile += ".moved" }, "LENO_SUBNET="),
		"network.*.forward": {func(_ *host, c *config.Config) { c.Networks[0].Forward = true }, func(a *host, _ config.Config) error {
			a.wall.mu.Lock()
			defer a.wall.mu.Unlock()
			last := a.wall.wanted[len(a.wall.wanted)-1]
			return expect(len(last) > 0 && last[0].Forward, "the firewall has %+v", last)
		}},

		"network.*.routing_rule_priority": {func(_ *host, c *config.Config) { c.Networks[0].RulePriority = 99 }, func(a *host, _ config.Config) error {
			a.mu.Lock()
			defer a.mu.Unlock()
			return expect(slices.ContainsFunc(a.rules, func(r string) bool { return strings.HasSuffix(r, " 99") }), "rules %q", a.rules)
		}},

		"enable_debug": {func(_ *host, c *config.Config) { c.EnableDebug = true }, func(a *host, _ config.Config) error {
			code, _ := a.request("GET", "/debug/pprof/cmdline", "")
			return expect(code == http.StatusOK, "profiles answer %d", code)
		}},
		"telemetry.prometheus_retention": {func(_ *host, c *config.Config) { c.Telemetry.PrometheusRetention = 0 }, func(a *host, _ config.Config) error {
			code, _ := a.request("GET", "/v1/agent/metrics?format=prometheus", "")
			return expect(code != http.StatusOK, "it is still served")
		}},
		// Gauges are sent every ten seconds. TestSenders of package telemetry looks at their names.
		"telemetry.disable_hostname": {func(_ *host, c *config.Config) { c.Telemetry.DisableHostname = true }, func(a *host, _ config.Config) error {
			return expect(telemetryConfig(a.agent.settings.get(), "x").Host == "", "the names have the host's")
		}},
		"telemetry.address": {
			func(h *host, c *config.Config) {
				port, err := ports.Free(1)
				must(h.t, err)
				c.Telemetry.Address = fmt.Sprint("127.0.0.1:", port[0])
			},
			func(_ *host, c config.Config) error {
				for host, want := range map[string]int{c.Telemetry.Address: http.StatusOK, "evil.example": http.StatusMisdirectedRequest} {
					r, err := http.NewRequest(http.MethodGet, "http://"+c.Telemetry.Address+telemetry.MetricsPath, nil)
					if err != nil {
						return err
					}
					r.Host, r.Close = host, true
					answer, err := http.DefaultClient.Do(r)
					if err != nil {
						return err
					}
					_ = answer.Body.Close()
					if answer.StatusCode != want {
						return fmt.Errorf("metrics answer %s to a request for %s, want %d", answer.Status, host, want)
					}
				}
				return nil
			},
		},
		"telemetry.statsd_address":    statsd(func(c *config.Config, address string) { c.Telemetry.StatsdAddress = address }),
		"telemetry.dogstatsd_address": statsd(func(c *config.Config, address string) { c.Telemetry.DogstatsdAddress = address }),
	}
}

// statsd returns the case of a setting that makes the agent send metrics to an address.
func statsd(change func(c *config.Config, address string)) settingCase {
	return settingCase{func(a *host, c *config.Config) {
		l, err := net.ListenPacket("udp", "127.0.0.1:0")
		must(a.t, err)
		a.t.Cleanup(func() { _ = l.Close() })
		a.metrics = l
		change(c, l.LocalAddr().String())
	}, func(a *host, _ config.Config) error {
		must(a.t, a.metrics.SetReadDeadline(time.Now().Add(time.Minute)))
		_, _, err := a.metrics.ReadFrom(make([]byte, 1<<16))
		return err
	}}
}

func (h *host) logFile() string {
	return filepath.Join(filepath.Dir(h.config.DataDir), "log", "leno.log")
}

// rotated logs two lines, and returns an error unless there are enough rotated files.
func (h *host) rotated(c config.Config, enough func(int) bool) error {
	h.agent.log.Warn("one")
	h.agent.log.Warn("two")
	found, err := filepath.Glob(strings.TrimSuffix(c.Log.File, ".log") + "-*.log")
	return errors.Join(err, expect(enough(len(found)), "rotated files: %q", found))
}

// TestEverySetting: a running agent either takes over a setting and shows the effect, or refuses it by name and changes
// nothing. This holds for each setting, including those added later.
func TestEverySetting(t *testing.T) {
	cases := settingCases()
	restart := map[string]settingCase{}
	for _, s := range config.Settings() {
		tt, ok := cases[s.Name]
		delete(cases, s.Name)
		switch {
		case !ok:
			t.Errorf("%s: what does a reload do with it?", s.Name)
		case (tt.seen == nil) != (s.Restart != ""):
			t.Errorf("%s: needs a restart %t, has an effect to see %t", s.Name, s.Restart != "", tt.seen != nil)
		case tt.seen == nil:
			restart[s.Name] = tt
		case slices.Contains([]string{"log_rotate_bytes", "log_rotate_duration", "log_rotate_max_files", // rotated files are named after the time
			"telemetry.address", "telemetry.statsd_address", "telemetry.dogstatsd_address"}, s.Name): // packets do not come in simulated time
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				takesOver(t, s.Name, tt)
			})
		default:
			subtest(t, s.Name, func(t *testing.T) { takesOver(t, s.Name, tt) })
		}
	}
	for name := range cases {
		t.Errorf("%s is no setting", name)
	}
	subtest(t, "restart", func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.start().ready()
		before := a.agent.settings.get()
		for name, tt := range restart {
			c := a.config
			tt.change(a, &c)
			err := a.agent.Reload(t.Context(), c)
			if err == nil || !strings.Contains(err.Error(), "restart, nothing was changed: "+name+": ") || strings.Contains(err.Error(), ";") {
				t.Errorf("%s was not refused by name: %v", name, err)
			}
			if diff := config.Compare(before, a.agent.settings.get()); len(diff) > 0 {
				t.Errorf("%s was refused, but changed: %v", name, diff)
			}
		}
	})
}

// takesOver fails the test unless a reload takes over a setting.
func takesOver(t *testing.T, name string, tt settingCase) {
	t.Helper()
	a := newHost(t, memory.New(), "a")
	a.quiet = name != "log_level" && name != "log_json"
	a.catalog = &serviceStore{Registry: a.registry, name: "here"}
	a.start().ready()
	if strings.Contains(name, "networks") {
		_, err := a.client.PutNetwork(t.Context(), api.Network{Name: "watched", Backend: []byte(`{"type":"recorder"}`),
			Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/22")}}}, false)
		must(t, err)
	}
	c := a.config
	c.Networks = slices.Clone(c.Networks)
	tt.change(a, &c)
	must(t, a.agent.Reload(t.Context(), c))
	eventually(t, func() error { return tt.seen(a, c) })
	a.ready()
}

// TestReloadTelemetryInUse: the answer to a reload names an address at which metrics cannot be served.
func TestReloadTelemetryInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	a := newHost(t, memory.New(), "a")
	c := a.config
	c.Telemetry.Address = taken.Addr().String()
	a.refresh = func() (config.Config, error) { return c, nil }
	a.start().ready()
	out, err := a.client.Reload(t.Context(), false)
	if err != nil || len(out.Changed) != 1 || len(out.Warnings) != 1 ||
		!strings.HasPrefix(out.Warnings[0], "telemetry.address cannot be used") || !strings.Contains(out.Warnings[0], "in use") {
		t.Errorf("%+v, %v", out, err)
	}
}
