package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/docpages"
	"github.com/lenonet/leno/e2e/mounts"
)

// services returns the instances of leno in the catalogue by host name.
func (f *flips) services(filter string) (map[string]*consul.CatalogService, error) {
	found, _, err := f.w.Consul.Client().Catalog().Service("leno", "", &consul.QueryOptions{Filter: filter})
	out := map[string]*consul.CatalogService{}
	for _, s := range found {
		host := strings.TrimPrefix(s.ServiceID, "leno-")
		if out[host] != nil {
			return nil, fmt.Errorf("%s is there twice", s.ServiceID)
		}
		out[host] = s
	}
	return out, err
}

// shown blocks until the catalogue's entry of a host satisfies right.
func (f *flips) shown(host string, right func(*consul.CatalogService) error) error {
	return f.poll(func() error {
		all, err := f.services("")
		if err != nil {
			return err
		}
		if all[host] == nil {
			return fmt.Errorf("no service of %s", host)
		}
		return right(all[host])
	})
}

func (f *flips) poll(right func() error) error {
	until := time.Now().Add(5 * time.Minute)
	for {
		err := right()
		if err == nil || time.Now().After(until) {
			return err
		}
		select {
		case <-f.w.Ctx.Done():
			return errors.Join(err, f.w.Ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// catalogue runs the queries that the page shows, over DNS and against the catalogue.
func (f *flips) catalogue() {
	w := f.w
	w.T.Helper()
	a, d := f.hosts[0], f.hosts[3]
	for _, p := range f.hosts {
		w.Must(f.shown(p.Name, func(s *consul.CatalogService) error {
			networks := "n"
			if p == f.hosts[2] || p == d {
				networks = "n,s"
			}
			if m := s.ServiceMeta; m["network"] != networks || m["subnet_n"] != f.subnet(p, "n").String() || m["backend_n"] != "vxlan" || m["version"] == "" ||
				strings.Join(s.ServiceTags, ",") != networks || s.ServicePort != 5366 {
				return fmt.Errorf("%s shows %+v", p.Name, s)
			}
			return nil
		}))
	}
	page := docpages.Source(w.T, docpages.Path("operations/health"))
	for _, m := range regexp.MustCompile(`'filter=([^']+)'`).FindAllStringSubmatch(page, -1) {
		filter := strings.NewReplacer("subnet_default", "subnet_n", "10.5.34.0/24", f.subnet(a, "n").String()).Replace(m[1])
		want := 4
		if strings.Contains(filter, "subnet_n") {
			want = 1
		}
		w.Must(f.poll(func() error {
			found, err := f.services(filter)
			if err == nil && (len(found) != want || found[a.Name] == nil) {
				err = fmt.Errorf("%s: %d hosts, want %d with %s", filter, len(found), want, a.Name)
			}
			return err
		}))
	}
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return w.Consul.Namespace.DialContext(ctx, network, "127.0.0.1:8600")
	}}
	asked := regexp.MustCompile(`(?m)^dig @127.0.0.1 -p 8600 (\S+)( SRV)?$`).FindAllStringSubmatch(page, -1)
	if len(asked) < 3 {
		w.T.Errorf("the page asks DNS %q", asked)
	}
	for _, m := range append(asked, []string{"", "s.leno.service.consul", ""}) {
		name := strings.Replace(m[1], "default.", "n.", 1)
		want := 4
		if strings.HasPrefix(name, "s.") {
			want = 2
		}
		w.Must(f.poll(func() error { // poll until every host's check has passed
			if m[2] != "" {
				_, found, err := resolver.LookupSRV(w.Ctx, "", "", name)
				if err != nil || len(found) != want || found[0].Port != 5366 {
					return fmt.Errorf("%s: %v, %v", name, found, err)
				}
				return nil
			}
			found, err := resolver.LookupHost(w.Ctx, name)
			if err != nil || len(found) != want || !slices.Contains(found, d.Addrs[0].String()) {
				return fmt.Errorf("%s: %v, %v", name, found, err)
			}
			return nil
		}))
	}
}

// comeAndGo checks that a stopped agent leaves the catalogue, that a killed one stays and is found
// again, and that a renamed one has no second entry.
func (f *flips) comeAndGo() {
	w := f.w
	w.T.Helper()
	hosts := func() string {
		all, err := f.services("")
		if err != nil {
			return err.Error()
		}
		return strings.Join(slices.Sorted(maps.Keys(all)), " ")
	}
	is := func(want string) {
		w.T.Helper()
		w.Must(f.poll(func() error {
			if got := hosts(); got != want {
				return fmt.Errorf("the catalogue has %q, want %q", got, want)
			}
			return nil
		}))
	}
	is("host-a host-b host-c host-d") // including after a kill of Consul
	b, d := f.hosts[1], f.hosts[3]
	w.Must(f.hosts[0].Process.Stop(w.Ctx))
	if got := hosts(); got != "host-b host-c host-d" {
		w.T.Errorf("after a clean stop: %s", got)
	}
	b.Process.Kill()
	d.Process.Kill()
	config, err := os.ReadFile(d.ConfigPath())
	w.Must(err)
	d.Configure(strings.Replace(string(config), `node_name = "host-d"`, `node_name = "host-e"`, 1))
	for _, p := range []*mounts.Host{b, d} {
		w.Must(p.Launch(mounts.Run))
	}
	is("host-b host-c host-e")
	for _, p := range f.hosts[1:] {
		w.Must(p.Process.Stop(w.Ctx))
	}
	if got := hosts(); got != "" {
		w.T.Errorf("after all have stopped: %s", got)
	}
}
