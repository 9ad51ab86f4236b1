package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
)

// The range of session TTLs that Consul accepts.
const (
	minTTL = 10 * time.Second
	maxTTL = 24 * time.Hour
)

// check checks values that depend on each other, once all files are read. It reports an error at the attribute of
// those involved that was set last.
func (l *loader) check() {
	l.checkStore()
	l.checkLease()
	c := &l.cfg
	if u := c.Underlay; len(u.PublicPorts) > 0 && u.PublicIP == "" && u.PublicIPv6 == "" {
		l.at(l.by["underlay.public_ports"], "the ports are those of public_ip or public_ipv6, and neither is set")
	}
	if login := l.blocks["consul.login"]; login != nil {
		l.checkLogin(*login)
	} else if c.Consul.Token != "" && c.Consul.TokenFile != "" {
		l.exclude("consul.token", "consul.token_file")
	}
	l.checkTLS("consul", &c.Consul.TLS)
	if block := l.blocks["consul.tls"]; block != nil && !l.refused["consul.address"] {
		address := []string{c.Consul.ServerAddress()}
		l.selectTLS(block, StoreConsul, "address", address)
		c.Consul.Address = address[0]
	}
	l.checkEtcd()
	if k := &c.Kubernetes; k.ConfigMap != "" { // the default of net_conf does not apply
		l.exclude("kubernetes.net_conf", "kubernetes.config_map")
		k.NetConf = ""
	}
	l.checkTLS("http", &c.HTTP.TLS)
	if t := &c.HTTP.TLS; t.CAFile != "" && t.CertFile == "" && t.KeyFile == "" {
		l.at(l.by["http.tls.ca_file"], "the http block's tls needs cert_file and key_file too")
	}
}

func (l *loader) checkLease() {
	c := &l.cfg.Lease
	ttl, margin, hold := l.by["lease.ttl"], l.by["lease.renew_margin"], l.by["lease.hold"]
	if ttl != nil && (c.TTL < minTTL || c.TTL > maxTTL) {
		reason := ""
		if l.cfg.Store() == StoreConsul {
			reason = ", the range Consul takes for a session"
		}
		l.at(ttl, "%s is outside 10s to 24h%s", FormatDuration(c.TTL), reason)
		return
	}
	switch {
	case margin == nil:
		c.RenewMargin = defaultRenewMargin(c.TTL)
	case c.RenewMargin == 0:
		l.at(margin, "must be more than 0: a session renewed only when its time is up may already be gone")
	case c.RenewMargin >= c.TTL:
		l.at(margin, "%s must be less than the ttl of %s: the session is renewed when ttl - renew_margin has passed",
			FormatDuration(c.RenewMargin), FormatDuration(c.TTL))
	case c.TTL-c.RenewMargin < minRenewPeriod(c.TTL):
		l.at(margin, "%s renews the session every %s, which is ttl - renew_margin: with a ttl of %s that must be at "+
			"least %s, so renew_margin can be at most %s", FormatDuration(c.RenewMargin), FormatDuration(c.TTL-c.RenewMargin),
			FormatDuration(c.TTL), FormatDuration(minRenewPeriod(c.TTL)), FormatDuration(c.TTL-minRenewPeriod(c.TTL)))
	}
	switch {
	case hold == nil:
		c.Hold = max(c.Hold, 2*c.TTL)
	case c.Hold < 2*c.TTL:
		l.at(hold, "%s must be at least twice the ttl of %s: %s may let a session live on for that long after its last "+
			"renewal, and a host that only missed renewals would find its subnet given away",
			FormatDuration(c.Hold), FormatDuration(c.TTL), l.cfg.StoreName())
	}
}

// minRenewPeriod is the shortest time between two renewals of a session. More
// renewals make no lease safer, and each of them is a request to Consul's leader.
func minRenewPeriod(ttl time.Duration) time.Duration { return max(time.Second, ttl/10) }

// exclude reports that an option and the one that replaces it are both set.
func (l *loader) exclude(first, second string) {
	if a, b := l.by[first], l.by[second]; a != nil && b != nil {
		l.at(b, "%s is set too, at %s: give one of them", a.Name, place(a.Range))
	}
}

// checkLogin requires that a login block is complete and that there is no other source of a token.
func (l *loader) checkLogin(login hcl.Range) {
	c := &l.cfg.Consul
	const summary = "Invalid login block"
	switch {
	case c.Token != "":
		l.report(login, summary, "token is set too, at %s: remove one of them", place(l.by["consul.token"].Range))
	case c.TokenFile != "":
		l.report(login, summary, "token_file is set too, at %s: remove one of them", place(l.by["consul.token_file"].Range))
	case c.Login.AuthMethod == "":
		l.report(login, summary, "It needs auth_method, the name of an auth method of Consul")
	case c.Login.BearerTokenFile == "":
		l.report(login, summary, "It needs bearer_token_file, the path of a file that contains a JWT")
	}
}

// checkStore reports blocks of two stores: the agent uses one.
func (l *loader) checkStore() {
	stores := []string{StoreConsul, StoreEtcd, StoreKubernetes}
	stores = slices.DeleteFunc(stores, func(kind string) bool { return l.blocks[kind] == nil })
	if len(stores) < 2 {
		return
	}
	first, second := *l.blocks[stores[0]], *l.blocks[stores[1]]
	other := fmt.Sprintf("The %s block at %s", stores[0], place(first))
	for _, o := range l.o.Overrides {
		if first.Filename == o.Source {
			other = o.Source
		}
	}
	l.report(second, "Two stores", "%s makes %s the store, the %s block at %s makes it %s: remove one of them",
		other, StoreName(stores[0]), stores[1], place(second), StoreName(stores[1]))
}

func (l *loader) checkEtcd() {
	if l.blocks[StoreEtcd] == nil {
		return
	}
	c := &l.cfg.Etcd
	l.checkTLS("etcd", &c.TLS)
	switch block := l.blocks["etcd.tls"]; {
	case l.refused["etcd.endpoints"]:
	case block != nil:
		l.selectTLS(block, StoreEtcd, "endpoints", c.Endpoints)
	default:
		if err := checkEndpoints(c.Endpoints); err != nil {
			l.at(l.by["etcd.endpoints"], "%s", err)
		}
	}
	switch {
	case c.Password != "" && c.PasswordFile != "":
		l.exclude("etcd.password", "etcd.password_file")
	case c.Username != "" && c.Password == "" && c.PasswordFile == "":
		l.at(l.by["etcd.username"], "the etcd block needs password_file or password too")
	case c.Username == "" && c.Password != "":
		l.at(l.by["etcd.password"], "the etcd block needs username too")
	case c.Username == "" && c.PasswordFile != "":
		l.at(l.by["etcd.password_file"], "the etcd block needs username too")
	}
}

// checkEndpoints requires that all endpoints use TLS or none, because a client has one kind of connection.
func checkEndpoints(endpoints []string) error {
	isSecure := func(endpoint string) bool { return strings.HasPrefix(endpoint, "https://") }
	for _, endpoint := range endpoints[1:] {
		if isSecure(endpoint) != isSecure(endpoints[0]) {
			return fmt.Errorf("%s and %s differ in whether they use TLS: all endpoints must use it, or none",
				endpoints[0], endpoint)
		}
	}
	return nil
}

// selectTLS requires that the tls block of a store is used. Because of the block, even an empty one, the addresses of
// the option without a scheme get https://.
func (l *loader) selectTLS(block *hcl.Range, store, option string, addresses []string) {
	for i, address := range addresses {
		scheme, _, found := strings.Cut(address, "://")
		switch {
		case !found:
			addresses[i] = "https://" + address
		case scheme != "https":
			where, summary := *block, "Invalid tls block"
			if a := l.by[store+"."+option]; a != nil {
				where, summary = a.Expr.Range(), invalidValue(a)
			}
			l.report(where, summary, "%s uses no TLS, but the %s block has a tls block: write https:// in %s or remove the "+
				"tls block", withoutPassword(address), store, option)
			return
		}
	}
}

// checkTLS requires certificate and key together.
func (l *loader) checkTLS(block string, t *TLS) {
	switch {
	case t.CertFile != "" && t.KeyFile == "":
		l.at(l.by[block+".tls.cert_file"], "the %s block's tls needs key_file too", block)
	case t.KeyFile != "" && t.CertFile == "":
		l.at(l.by[block+".tls.key_file"], "the %s block's tls needs cert_file too", block)
	}
}

// checkFiles reports errors of files at the settings that name them.
func (l *loader) checkFiles() {
	wrong := l.o.CheckFiles(l.cfg)
	for _, setting := range slices.Sorted(maps.Keys(wrong)) {
		if a := l.by[setting]; a != nil {
			l.at(a, "%s", wrong[setting])
		} else {
			l.unplaced(fmt.Sprintf("Invalid value for %q", setting), wrong[setting].Error())
		}
	}
}
