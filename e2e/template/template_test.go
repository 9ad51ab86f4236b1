package template

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	consul "github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// TestOneHead checks that each template is self-contained and that their common part is identical.
func TestOneHead(t *testing.T) {
	files := []string{"hosts.json.ctmpl", "nginx-allow.conf.ctmpl", "subnet.env.ctmpl", "daemon.json.ctmpl"}
	there, err := filepath.Glob("../../examples/consul-template/*.ctmpl")
	if err != nil || len(there) != len(files) {
		t.Fatal(there, err)
	}
	heads := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join("../../examples/consul-template", file))
		if err != nil {
			t.Fatal(err)
		}
		head, _, ok := strings.Cut(string(text), "{{- /* Then ")
		if !ok {
			t.Errorf("%s has no second part", file)
		}
		heads[file] = head
		if diff := cmp.Diff(heads["hosts.json.ctmpl"], head); diff != "" {
			t.Errorf("%s begins otherwise:\n%s", file, diff)
		}
	}
}

// TestRender makes consul-template render every example for three networks, while hosts come,
// change and leave and strangers write invalid records.
func TestRender(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	w := newWorld(t)
	a, b := w.Hosts[0], w.Hosts[1]
	w.startAgent(a, 3, "default", "four", "six")
	w.startAgent(b, 4, "default")
	w.installNginx(a)

	reader := "CONSUL_HTTP_TOKEN=" + w.token("consul-template", w.example("policy.hcl"))
	operator, name := "CONSUL_HTTP_TOKEN="+operatorToken, "LENO_NODE_NAME="+a.Name
	def := w.render("default", "default", reader, name, "LENO_IPMASQ=true")
	four := w.render("four", "four", operator, name, "LENO_TEMPLATE_NETWORK=four")
	six := w.render("six", "six", operator, name, "LENO_TEMPLATE_NETWORK=six")
	for _, r := range []*rendering{def, four, six} {
		r.eventually("the first rendering of "+r.network, func() error { return errors.Join(r.current(), r.own()) })
		r.versions(operator, name)
	}
	def.soon()
	four.renumbered()
	def.released()
	def.visited()
	def.undefined()
	def.powerless()
	def.nameless(reader)
	def.outage()
	def.killed(reader, name, "LENO_IPMASQ=true")
	for _, r := range []*rendering{def, four, six} {
		if !r.IsRunning() {
			t.Errorf("consul-template of %s ended", r.network)
		}
	}
}

// versions renders daemon.json for several versions of Docker.
func (r *rendering) versions(environment ...string) {
	r.w.t.Helper()
	subnets, err := os.ReadFile(r.w.Hosts[0].SubnetFile(r.network))
	r.w.must(err)
	var runs errgroup.Group
	for _, masquerade := range []string{"true", "false"} {
		subnets := regexp.MustCompile(`(LENO|FLANNEL)_IPMASQ=\w+`).ReplaceAll(subnets, []byte("${1}_IPMASQ="+masquerade))
		for _, version := range []string{"20.10.24", "27.5.1", "28.0.0", "28.1.1", "29.0.1"} {
			runs.Go(func() error {
				command := append([]string{"env", "LENO_TEMPLATE_NETWORK=" + r.network, "LENO_DOCKER_VERSION=" + version, "LENO_IPMASQ=" + masquerade}, environment...)
				out, err := r.w.Hosts[0].Exec(r.w.ctx, append(command, r.w.program, "-once", "-dry", "-consul-addr="+r.w.Consul.Address(),
					"-template="+filepath.Join(r.w.source, "daemon.json.ctmpl")+":daemon.json")...)
				if err != nil {
					return err
				}
				_, text, _ := strings.Cut(out, "\n") // "> daemon.json"
				return r.docker(subnets, text, version)
			})
		}
		if masquerade == "true" && r.network != "default" {
			break
		}
	}
	if err := runs.Wait(); err != nil {
		r.w.t.Error(err)
	}
}

// soon measures how long it takes until a lease that was added, changed or removed is in the files
// that are the same on every host. A busy machine may delay some of the updates, but not all.
func (r *rendering) soon() {
	r.w.t.Helper()
	took := map[string][]time.Duration{}
	key := stranger(9).key()
	for i := range 4 {
		for _, change := range []struct{ what, value string }{
			{"comes", stranger(9).String()},
			{"changes", stranger(9).with("public_ip", nil).with("public_ips", []string{fmt.Sprintf("192.0.2.%d", 201+i)}).String()},
			{"goes", ""},
		} {
			begun := time.Now()
			r.w.put(map[string]string{key: change.value})
			r.eventually("a lease that "+change.what, r.current)
			took[change.what] = append(took[change.what], time.Since(begun))
		}
	}
	for what, all := range took {
		r.w.t.Logf("a lease that %s is rendered after %v", what, all)
		if best := slices.Min(all); best > 10*time.Second {
			r.w.t.Errorf("a lease that %s is rendered late: %v", what, all)
		}
	}
}

// renumbered gives the host another subnet, which its agent writes to the subnet file: the files
// for this host follow.
func (r *rendering) renumbered() {
	r.w.t.Helper()
	h, subnet, gateway := r.w.Hosts[0], "10.6.200.32/27", "10.6.200.33"
	before, err := os.ReadFile(h.SubnetFile(r.network))
	r.w.must(err)
	old := regexp.MustCompile(`LENO_SUBNET=([0-9.]+)`).FindSubmatch(before)
	if string(old[1]) == gateway {
		subnet, gateway = "10.6.200.64/27", "10.6.200.65"
	}
	for _, command := range []string{"reservation add -node=" + h.Name + " " + r.network + " " + subnet, "lease revoke " + r.network + " " + r.containing(string(old[1]))} {
		if out, err := h.Leno(r.w.ctx, append(strings.Fields(command), "-token="+operatorToken)...); err != nil {
			r.w.t.Fatal(out, err)
		}
	}
	kv, key := r.w.Consul.Client().KV(), "leno/leases/four/"+strings.ReplaceAll(subnet, "/", "-")
	r.eventually("the other subnet", func() error {
		pair, _, err := kv.Get(key, &consul.QueryOptions{Token: operatorToken})
		if err == nil && pair == nil {
			err = errors.New("no lease of it")
		}
		return err
	})
	r.eventually("its files", func() error {
		if !strings.Contains(r.file(dockerFile), fmt.Sprintf("%q", gateway+"/27")) {
			return fmt.Errorf("still %s", r.file(dockerFile))
		}
		return errors.Join(r.current(), r.own())
	})
}

// containing returns the network's subnet that contains a gateway.
func (r *rendering) containing(gateway string) string {
	r.w.t.Helper()
	all, _, err := r.w.wanted(r.network)
	r.w.must(err)
	for _, h := range all.Hosts {
		for _, p := range h.Subnets {
			if strings.HasPrefix(p.Addr().Next().String()+"/", gateway+"/") {
				return p.String()
			}
		}
	}
	r.w.t.Fatalf("no subnet of %s in %+v", gateway, all)
	return ""
}

// released checks that nginx serves another host and its container until that host releases its
// lease, and never a machine that is not a host.
func (r *rendering) released() {
	r.w.t.Helper()
	a, b := r.w.Hosts[0], r.w.Hosts[1]
	_, err := a.AddContainer(r.w.ctx, r.network) // the container's bridge has the gateway's addresses
	r.w.must(err)
	c, err := b.AddContainer(r.w.ctx, r.network)
	r.w.must(err)
	r.serve()
	f, err := lab.ReadSubnetFile(a.SubnetFile(r.network))
	r.w.must(err)
	for _, gateway := range f.Subnets() {
		r.asked(c.Namespace, gateway.Addr(), http.StatusOK)
	}
	r.asked(b.Namespace, a.Addrs[0], http.StatusOK)
	r.asked(r.w.Consul.Namespace, a.Addrs[0], http.StatusForbidden)
	r.asked(r.w.Consul.Namespace, a.Addrs[1], http.StatusForbidden)

	if out, err := b.Leno(r.w.ctx, "lease", "release", "-token="+operatorToken, r.network); err != nil {
		r.w.t.Fatal(out, err)
	}
	r.eventually("the lease to be gone", r.current)
	if strings.Contains(r.file(hostsFile), b.Name) {
		r.w.t.Errorf("%s is still in\n%s", b.Name, r.file(hostsFile))
	}
	r.asked(b.Namespace, a.Addrs[0], http.StatusForbidden)
	r.w.must(b.StopAgent(r.w.ctx))
	r.w.prefer(b, 4)
	r.w.must(b.RestartAgent())
	r.w.must(b.WaitReady(r.w.ctx))
	r.eventually("the lease to be back", r.current)
	r.asked(b.Namespace, a.Addrs[0], http.StatusOK)
}

var templateError = regexp.MustCompile(`\[ERR\].*\.ctmpl`)

// templateErrors returns how often a template could not be rendered. A failed request to Consul, which is repeated, is an
// error of another kind.
func (r *rendering) templateErrors() int { return len(templateError.FindAllString(r.Output(), -1)) }

// visited writes invalid records: those that agents ignore are ignored, and all others are in the
// files, which stay well-formed.
func (r *rendering) visited() {
	r.w.t.Helper()
	before := r.templateErrors()
	all := strange()
	r.w.put(all)
	r.eventually("the good among the strange", r.current)
	want, _, err := r.w.wanted(r.network)
	r.w.must(err)
	r.w.t.Logf("%d strange records, %d hosts", len(all), len(want.Hosts))
	if len(want.Hosts) < 20 || len(all)-len(want.Hosts) < 100 {
		r.w.t.Errorf("%d hosts of %d records: are both kinds among them?", len(want.Hosts), len(all))
	}
	r.w.must(errors.Join(r.sound(), r.own()))
	r.w.put(map[string]string{stranger(250).key(): stranger(250).String()})
	r.eventually("a host that comes then", r.current)
	for key := range all {
		all[key] = ""
	}
	delete(all, "leno/leases/default/_") // the agents' marker, which stays
	all[stranger(250).key()] = ""
	r.w.put(all)
	r.eventually("all strangers to be gone", r.current)
	if now := r.templateErrors(); now != before {
		r.w.t.Errorf("%d errors", now-before)
	}
}

// undefined checks that a network definition that cannot be read leaves the files unchanged.
func (r *rendering) undefined() {
	r.w.t.Helper()
	kv := r.w.Consul.Client().KV()
	definition, _, err := kv.Get("leno/networks/default", &consul.QueryOptions{Token: operatorToken})
	r.w.must(err)
	before := r.file(hostsFile) + r.file(nginxFile) + r.file(subnetFile) + r.file(dockerFile)
	for i, value := range []string{"oops", `{"version":2,"pools":[{"prefix":"10.5.0.0/16","subnet_len":24}]}`, "5", `{"version":1,"pools":[]}`, `{"version":1,"pools":5}`, `{"version":1,"pools":["x"]}`} {
		// In two steps: if both changes arrive together, the new host may be read with the
		// previous, valid definition.
		for _, change := range []map[string]string{{definition.Key: value}, {stranger(60 + i).key(): stranger(60 + i).String()}} {
			errs := r.templateErrors()
			r.w.put(change)
			r.eventually("an error of each file", func() error {
				if now := r.templateErrors(); now < errs+4 {
					return fmt.Errorf("%d", now-errs)
				}
				return nil
			})
		}
		if now := r.file(hostsFile) + r.file(nginxFile) + r.file(subnetFile) + r.file(dockerFile); now != before {
			r.w.t.Errorf("network %s changed the files:\n%s", value, now)
		}
	}
	r.w.put(map[string]string{definition.Key: string(definition.Value)})
	r.eventually("the network to be read again", func() error { return errors.Join(r.current(), r.own()) })
}

// powerless checks that without rights, when Consul responds with an empty list, no file is
// overwritten.
func (r *rendering) powerless() {
	r.w.t.Helper()
	dir := r.w.token("networks-alone", `key "leno/networks/default" { policy = "read" }`)
	p := r.w.render(r.network, "powerless", "LENO_NODE_NAME="+r.w.Hosts[0].Name, "CONSUL_HTTP_TOKEN="+dir)
	p.said("kv.list(leno/leases/default/): returned 0 pairs")
	p.said("missing dependency: kv.list(leno/leases/default/)")
	for _, path := range []string{hostsFile, nginxFile, subnetFile, dockerFile} {
		if text := p.file(path); text != "" {
			r.w.t.Errorf("%s without rights:\n%s", path, text)
		}
	}
	r.w.must(p.Stop(r.w.ctx))
}

// nameless checks that without a valid LENO_NODE_NAME there is an error message, and only the files
// that are the same on every host are written.
func (r *rendering) nameless(environment ...string) {
	r.w.t.Helper()
	for _, name := range []string{"", "host-z"} {
		p := r.w.render(r.network, "nameless-"+name, append(environment, "LENO_NODE_NAME="+name)...)
		p.said(fmt.Sprintf("host %q, which LENO_NODE_NAME names, has no lease in network default", name))
		p.eventually("the files for everybody", p.current)
		if p.file(subnetFile)+p.file(dockerFile) != "" {
			r.w.t.Errorf("files of host %q:\n%s%s", name, p.file(subnetFile), p.file(dockerFile))
		}
		r.w.must(p.Stop(r.w.ctx))
	}
}

// outage checks that all files stay while Consul is unreachable, and are updated again afterwards.
func (r *rendering) outage() {
	r.w.t.Helper()
	before := r.file(hostsFile) + r.file(nginxFile) + r.file(subnetFile) + r.file(dockerFile)
	r.w.must(r.w.Consul.Kill())
	r.said("connection refused (retry attempt 2 after")
	if now := r.file(hostsFile) + r.file(nginxFile) + r.file(subnetFile) + r.file(dockerFile); now != before {
		r.w.t.Errorf("the outage changed the files:\n%s", now)
	}
	r.w.must(r.w.Consul.Start(r.w.ctx))
	r.w.put(map[string]string{stranger(9).key(): stranger(9).String()})
	r.eventually("a host that came after the outage", func() error { return errors.Join(r.current(), r.own()) })
}

// killed kills consul-template: the next one finds the files and brings them up to date.
func (r *rendering) killed(environment ...string) {
	r.w.t.Helper()
	r.Kill()
	r.w.put(map[string]string{stranger(9).key(): ""})
	again := r.w.render(r.network, "default", environment...)
	r.Process = again.Process
	r.eventually("what changed in the meantime", func() error { return errors.Join(r.current(), r.own()) })
}
