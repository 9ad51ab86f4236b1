package docpages

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/command"
	"github.com/lenonet/leno/command/cli"
)

// TestDocumentationBlocks loads every configuration that the documentation shows, compares copies
// with their files, and checks that every block that is not run is on the list.
func TestDocumentationBlocks(t *testing.T) {
	notRun := map[string]int{}
	for _, b := range AllBlocks(t) {
		if b.Generated != "" {
			if b.Generated != "make docs" || !generatedPage(b.Page) {
				t.Errorf("%s: %s does not write this page", b, b.Generated)
			}
			continue
		}
		if b.NoRun != "" {
			if len(strings.Fields(b.NoRun)) < 2 {
				t.Errorf("%s: norun=%q gives no reason", b, b.NoRun)
			}
			notRun[strings.TrimPrefix(b.Page, Dir)+": "+b.First()]++
			continue
		}
		switch {
		case b.Copies():
			if diff := cmp.Diff(Source(t, b.Title), b.Text); diff != "" {
				t.Errorf("%s is not %s (-file +page):\n%s", b, b.Title, diff)
			}
		case b.Kind == "sh", b.Kind == "console": // run by TestDocumentationCommands
		case b.Kind == "hcl", b.Kind == "json":
			if out, ok := validate(t, b.Kind, configuration(b.Text)); !ok {
				t.Errorf("%s:\n%s", b, out)
			}
		default:
			t.Errorf("%s: a block of kind %q, which nothing tests", b, b.Kind)
		}
	}
	benchCommand := "make bench BENCH_PEER='plain=examples/bench/vxlan.sh'"
	want := map[string]int{
		// Run by .ci/run, which is checked below.
		"README.md: git clone https://github.com/lenonet/leno && cd leno":                                 1,
		"getting-started.mdx: git clone https://github.com/lenonet/leno && cd leno":                       1,
		"index.mdx: git clone https://github.com/lenonet/leno && cd leno":                                 1,
		"integrations/docker.mdx: default: foreign_rules is warning for 3s: iptables-nft table raw chain": 1,
		"integrations/docker.mdx: sudo examples/docker/leno-docker.sh docker0 default":                    1,
		"integrations/docker.mdx: sudo systemctl daemon-reload":                                           1,
		// TestDocker, TestUFW and TestFirewalld in e2e/vm run them.
		"integrations/packages.mdx: skopeo copy oci-archive:leno_1.0.0_oci.tar:1.0.0 docker-archive:leno_1.0.0_docker.tar:leno:1.0.0": 1,
		"integrations/docker.mdx: sudo iptables -I DOCKER-USER -i br-other -d 10.5.0.0/16 -m conntrack --ctstate NEW -j DROP":         1,
		"operations/firewall.mdx: sudo ufw allow proto udp from 192.0.2.12 to any port 8472":                                          1,
		"operations/firewall.mdx: sudo firewall-cmd --permanent --zone=public --add-port=8472/udp":                                    1,
		// TestRender in e2e/template runs it and provokes the error.
		"integrations/consul-template.mdx: sudo LENO_NODE_NAME=$(hostname) consul-template -config=/etc/consul-template/leno.hcl": 1,
		"integrations/consul-template.mdx: [ERR] (runner) /etc/consul-template/daemon.json.ctmpl: execute: template: …: error":    1,
		// No container engine, registry or OpenTelemetry Collector runs there. TestImage runs the
		// image's program, TestSBOM compares the list, TestPrometheus scrapes the agent.
		"integrations/packages.mdx: go version -m /usr/bin/leno":                             1,
		"integrations/packages.mdx: podman load --input leno_1.0.0_oci.tar":                  1,
		`integrations/packages.mdx: sudo docker run --detach --name leno --restart=always \`: 1,
		"operations/telemetry.mdx: receivers:":                                               1,
		// Networks are switched in e2e/datapath.
		"operations/networks.mdx: leno network plan encrypted.hcl":                                                                          1,
		"api/agent.mdx: curl -s -X POST -d '{\"source\":\"10.5.34.2\",\"destination\":\"10.5.35.2\"}' http://127.0.0.1:5366/v1/agent/trace": 1,
		"api/networks.mdx: curl -s -X PUT -d '{\"action\":\"stop\"}' http://127.0.0.1:5366/v1/network/default/switch":                       1,
		// A rule for hosts that drop other packets.
		"operations/probe.mdx: sudo iptables -A INPUT -i leno-default -p udp --dport 5367 -j ACCEPT": 1,
		// An editor's settings, and an update that needs the internet.
		"configuration.mdx: {": 1,
		"contributing/index.mdx: go -C tools/govulncheck get golang.org/x/vulndb@latest": 1,
		// systemd would do this to the machine that runs the tests.
		"operations/remove.mdx: sudo systemctl disable --now leno": 1,
		"operations/systemd.mdx: journalctl -u leno -p warning":    1,
		"operations/systemd.mdx: sudo systemd-sysusers":            1,
		"operations/upgrade.mdx: sudo systemctl restart leno":      1,
		// TestNomad in e2e/nomad runs them.
		"integrations/nomad.mdx: sudo install -D -m 755 bin/leno /usr/local/bin/leno":                           1,
		"integrations/nomad.mdx: nomad job run examples/nomad/leno.nomad.hcl":                                   1,
		"integrations/nomad.mdx: nomad job run examples/nomad/web.nomad.hcl":                                    1,
		"guides/nomad.mdx: nomad job run -var=leno=/opt/leno/next/leno examples/nomad/leno.nomad.hcl":           1,
		"guides/nomad.mdx: nomad job stop leno":                                                                 1,
		"guides/nomad.mdx: sudo install -D -m 644 examples/nomad/leno.tmpfiles /etc/tmpfiles.d/leno-nomad.conf": 1,
		"guides/nomad.mdx: nomad job revert leno 1":                                                             1,
		"guides/nomad.mdx: nomad job run examples/nomad/leno-exec.nomad.hcl":                                    1,
		"guides/nomad.mdx: nomad job restart -yes leno":                                                         1,
		"guides/nomad.mdx: nomad job restart -yes -reschedule leno":                                             1,
		"guides/nomad.mdx: nomad job run -var=release_on_stop=true examples/nomad/leno.nomad.hcl":               1,
		"integrations/service-mesh.mdx: nomad job run examples/nomad/mesh.nomad.hcl":                            1,
		"integrations/nomad.mdx: group \"web\" {":                                                               1,
		"integrations/service-mesh.mdx: network {":                                                              1,
		"integrations/service-mesh.mdx: sudo iptables -t nat -A PREROUTING -s 10.5.0.0/16 -p udp --dport 53 -m addrtype --dst-type LOCAL -j REDIRECT --to-ports 8600": 1,
		// No Kubernetes runs there: TestKubernetes in e2e/kubernetes applies the file to an API server.
		"integrations/kubernetes.mdx: kubectl apply -f examples/kubernetes/leno.yaml":                                              1,
		"integrations/kubernetes.mdx: kubectl label node node-7 leno.lenonet.io/host=true   # flannel's DaemonSet leaves the node": 1,
		"integrations/kubernetes.mdx: sudo systemctl disable --now leno":                                                           1,
		// TestIdentity in e2e/nomad runs them.
		"integrations/nomad.mdx: consul acl policy create -name=leno -rules=@examples/nomad/consul/policy.hcl": 1,
		"integrations/nomad.mdx: nomad job run -var=auth_method=leno examples/nomad/leno.nomad.hcl":            1,
		// The output on a host with a fault: TestDoctor.
		"operations/doctor.mdx: $ leno doctor": 1,
		// TestHosts in e2e/host asks agents on other hosts.
		"operations/doctor.mdx: leno doctor -all -peer-address='https://{node}.example.com:5366' -ca-cert=/etc/leno.d/ca.pem": 1,
		// TestFromFlannel in command reads such a file.
		"migrate/flannel.mdx: leno network plan net-conf.json -from-flannel=default": 1,
		// Commands of guides whose parts are tested elsewhere.
		"operations/access-control.mdx: consul acl policy create -name=leno -rules=@examples/nomad/consul/policy.hcl": 1,
		"guides/backup.mdx: consul snapshot save leno.snap":                                                           1,
		"guides/backup.mdx: consul snapshot restore leno.snap":                                                        1,
		"guides/automate.mdx: - hosts: all":                                                                           1,
		"guides/encrypt.mdx: leno network plan encrypted.hcl":                                                         1,
		"troubleshooting/index.mdx: leno status":                                                                      1,
		"troubleshooting/index.mdx: sudo leno trace 10.5.34.2 10.5.35.2":                                              1,
		// There is no etcd beside the hosts of this test. TestStores in e2e/migrate copies between real stores.
		"migrate/stores.mdx: leno store copy -from=etcd.hcl -to=consul.hcl -dry-run": 1,
		"migrate/stores.mdx: leno store copy -from=etcd.hcl -to=consul.hcl":          1,
		"migrate/stores.mdx: leno store copy -from=consul.hcl -to=etcd.hcl -dry-run": 1,
		// systemd and flannel are on no host of the tests.
		"migrate/stores.mdx: systemctl disable --now flanneld": 1,
		"migrate/stores.mdx: systemctl disable --now leno":     1,
		"migrate/stores.mdx: systemctl restart leno":           1,
		// TestHealthFlips asks without dig.
		"operations/health.mdx: dig @127.0.0.1 -p 8600 leno.service.consul":                1,
		"operations/host-faults.mdx: ip rule add to 10.5.0.0/16 lookup main priority 5269": 1,
	}
	// e2e/packages installs packages on machines of its own and makes releases.
	for _, first := range []string{
		"leno_1.0.0-1_amd64.deb          leno_1.0.0-1_arm64.deb",
		"sha256sum --check --ignore-missing SHA256SUMS",
		"sudo dpkg --install leno_1.0.0-1_amd64.deb      # Debian, Ubuntu",
		"sudo leno validate /etc/leno.d",
		"sudo dpkg --install leno_1.1.0-1_amd64.deb",
		"sudo leno cleanup -dry-run -config-dir=/etc/leno.d   # what is there of leno's",
		"make package    # deb and rpm, of the source as it is",
		"diff SHA256SUMS dist/SHA256SUMS",
	} {
		want["integrations/packages.mdx: "+first] = 1
	}
	if diff := cmp.Diff(want, notRun); diff != "" {
		t.Errorf("blocks that are not run (-known +is):\n%s", diff)
	}
	ci, parts := Source(t, ".ci/run"), Source(t, "tools/parts")
	for _, target := range []string{"demo", "test"} {
		if !strings.Contains(ci, "step make "+target+"\n") {
			t.Errorf(".ci/run does not run make %s", target)
		}
	}
	if !strings.Contains(parts, "| "+strings.ReplaceAll(benchCommand, "'", "")+" ARGS=-short\n") {
		t.Errorf("make test-all does not run %s in short", benchCommand)
	}
	if !strings.Contains(Source(t, "tools/demo"), "\nmake --silent build\n") {
		t.Error("make demo does not make build")
	}
}

// generatedPage reports whether `make docs` writes the whole page.
func generatedPage(path string) bool {
	below := strings.TrimPrefix(path, Dir)
	return path != Path("commands/index") && path != Path("commands/json") && path != Path("api/index") &&
		(strings.HasPrefix(below, "commands/") || strings.HasPrefix(below, "api/"))
}

var networkOption = regexp.MustCompile(`(?m)^(backend|ip_masq|forward|subnet_file)\b`)

// configuration completes a fragment: the content of a network block gets a block around it.
func configuration(text string) string {
	if !networkOption.MatchString(text) {
		return text
	}
	return "network \"default\" {\n  ipv4 {\n    prefix = \"10.5.0.0/16\"\n  }\n" + text + "}\n"
}

// validate runs `leno validate` in this process on a file with the text, as the configuration of
// another host.
func validate(t *testing.T, kind, text string) (output string, ok bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "doc."+kind)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return leno("validate", "-no-files", path)
}

// leno runs one command in this process.
func leno(args ...string) (output string, ok bool) {
	var out bytes.Buffer
	m := command.NewMeta("test", &debug.BuildInfo{})
	m.Stdin, m.Stdout, m.Stderr = strings.NewReader(""), &out, &out
	m.Getenv = func(string) string { return "" }
	code := cli.Run(args, m, command.Commands)
	return out.String(), code == 0
}

// TestDocumentationCode checks that every `leno ...` in running text is a command that exists, with
// flags that exist.
func TestDocumentationCode(t *testing.T) {
	span := regexp.MustCompile("`(?:sudo )?leno ([a-z][^`]*)`")
	commands := command.Commands(command.NewMeta("test", nil))
	found := 0
	for _, path := range append(Pages(t), "CHANGELOG.md") {
		for _, m := range span.FindAllStringSubmatch(Prose(Source(t, path)), -1) {
			found++
			words := strings.Fields(m[1])
			name := words[0]
			if len(words) > 1 && commands[name+" "+words[1]] != nil {
				name += " " + words[1]
			}
			if commands[name] == nil {
				t.Errorf("%s: `%s`: no such command", path, m[0])
				continue
			}
			help, _ := leno(append(strings.Fields(name), "-help")...)
			for _, word := range words {
				if flag, _, _ := strings.Cut(word, "="); strings.HasPrefix(flag, "-") && flag != "-help" && !strings.Contains(help, flag) {
					t.Errorf("%s: %s has no flag %s", path, m[0], flag)
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d commands in the text: are they still found?", found)
	}
}

// TestDocumentationLinks follows every link within the source tree, to the file and to the heading
// in it. Pages link to each other by relative file path, which works in the source tree and which
// the site turns into addresses.
func TestDocumentationLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)|(?m:^\[[^\]]+\]: (\S+)$)`)
	headings := map[string][]string{} // anchors by file
	for _, path := range append(Pages(t), "CHANGELOG.md") {
		for _, m := range link.FindAllStringSubmatch(Prose(Source(t, path)), -1) {
			target, anchor, _ := strings.Cut(m[1]+m[2], "#")
			if file, ok := strings.CutPrefix(target, "https://github.com/lenonet/leno/blob/main/"); ok {
				target = file
			} else if strings.Contains(target, "://") {
				continue
			} else if target == "" {
				target = path
			} else {
				target = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(Root + target); err != nil {
				t.Errorf("%s: link to %s: %v", path, target, err)
				continue
			}
			if anchor == "" {
				continue
			}
			if headings[target] == nil {
				headings[target] = anchors(Source(t, target))
			}
			if !slices.Contains(headings[target], anchor) {
				t.Errorf("%s: %s has no heading #%s, it has %v", path, target, anchor, headings[target])
			}
		}
	}
}

var notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// anchors returns the anchors of a page's headings, as GitHub and the site generate them.
func anchors(text string) []string {
	var out []string
	for line := range strings.Lines(Prose(text)) {
		if heading := strings.TrimLeft(line, "#"); heading != line && strings.HasPrefix(heading, " ") {
			kept := notInAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			out = append(out, strings.ReplaceAll(kept, " ", "-"))
		}
	}
	return out
}
