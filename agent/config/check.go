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
	l.checkFirewall()
	l.checkUnderlay()
	l.checkTokens()
	l.checkTLS("consul", &l.cfg.Consul.TLS, false)
	l.checkEtcd()
	l.checkKubernetes()
	l.checkTLS("http", &l.cfg.HTTP.TLS, true)
}

func (l *loader) checkLease() {
	c := &l.cfg.Lease
	ttl, margin, hold := l.by["lease.ttl"], l.by["lease.renew_margin"], l.by["lease.hold"]
	if ttl != nil && (c.TTL < minTTL || c.TTL > maxTTL) {
		if l.cfg.Store() != StoreConsul {
			l.at(ttl, "%s is outside 10s to 24h", FormatDuration(c.TTL))
		} else {
			l.at(ttl, "%s is outside 10s to 24h, the range Consul takes for a session", FormatDuration(c.TTL))
		}
		return
	}
	switch {
	case margin == nil:
		c.RenewMargin = defaultRenewMargin(c.TTL)
	case c.RenewMargin == 0:
		l.at(margin, "must be more than 0: a session renewed only when its time is up may already be gone")
	case c.RenewMargin >= c.TTL:
		l.at(margin, "%s must be less than the ttl of %s: the session is renewed when ttl - renew_margin has passed", FormatDuration(c.RenewMargin), FormatDuration(c.TTL))
	case c.TTL-c.RenewMargin < minRenewPeriod(c.TTL):
		l.at(margin, "%s renews the session every %s, which is ttl - renew_margin: with a ttl of %s that must be at least %s, so renew_margin can be at most %s",
			FormatDuration(c.RenewMargin), FormatDuration(c.TTL-c.RenewMargin), FormatDuration(c.TTL), FormatDuration(minRenewPeriod(c.TTL)), FormatDuration(c.TTL-minRenewPeriod(c.TTL)))
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

// The resync finds changes that no event reported. More often than once a second it would cost more than it can find,
// and less often than once an hour it would be useless.
const (
	minResync = time.Second
	maxResync = time.Hour
)

func (l *loader) checkFirewall() {
	c := &l.cfg.Firewall
	if resync := l.by["firewall.resync"]; resync != nil && (c.Resync < minResync || c.Resync > maxResync) {
		l.at(resync, "%s is outside 1s to 1h", FormatDuration(c.Resync))
	}
}

func (l *loader) checkUnderlay() {
	c := &l.cfg.Underlay
	if ports := l.by["underlay.public_ports"]; len(c.PublicPorts) > 0 && c.PublicIP == "" && c.PublicIPv6 == "" {
		l.at(ports, "the ports are those of public_ip or public_ipv6, and neither is set")
	}
}

func (l *loader) checkTokens() {
	c := &l.cfg.Consul
	token, file := l.by["consul.token"], l.by["consul.token_file"]
	if login := l.blocks["consul.login"]; login != nil {
		l.checkLogin(*login, token, file)
		return
	}
	if token == nil || file == nil || c.Token == "" || c.TokenFile == "" {
		return
	}
	l.at(file, "token is set too, at %s: give one of them", place(token.Range))
}

// checkLogin requires that a login block is complete and that there is no other source of a token.
func (l *loader) checkLogin(login hcl.Range, token, file *hcl.Attribute) {
	c := &l.cfg.Consul
	const summary = "Invalid login block"
	switch {
	case c.Token != "":
		l.report(login, summary, "token is set too, at %s: remove one of them", place(token.Range))
	case c.TokenFile != "":
		l.report(login, summary, "token_file is set too, at %s: remove one of them", place(file.Range))
	case c.Login.AuthMethod == "":
		l.report(login, summary, "It needs auth_method, the name of an auth method of Consul")
	case c.Login.BearerTokenFile == "":
		l.report(login, summary, "It needs bearer_token_file, the path of a file that contains a JWT")
	}
}

// checkStore reports blocks of two stores: the agent uses one.
func (l *loader) checkStore() {
	type block struct {
		kind  string
		place *hcl.Range // nil for none
	}
	blocks := []block{{StoreConsul, l.blocks[StoreConsul]}, {StoreEtcd, l.blocks[StoreEtcd]}, {StoreKubernetes, l.blocks[StoreKubernetes]}}
	blocks = slices.DeleteFunc(blocks, func(b block) bool { return b.place == nil })
	if len(blocks) < 2 {
		return
	}
	first, second := blocks[0], blocks[1]
	other := fmt.Sprintf("The %s block at %s", first.kind, place(*first.place))
	if first.place.Filename == overridesName {
		other = "A flag or an environment variable"
	}
	l.report(*second.place, "Two stores", "%s makes %s the store, the %s block at %s makes it %s: remove one of them",
		other, StoreName(first.kind), second.kind, place(*second.place), StoreName(second.kind))
}

func (l *loader) checkEtcd() {
	if l.blocks[StoreEtcd] == nil {
		return
	}
	c := &l.cfg.Etcd
	l.checkTLS("etcd", &c.TLS, false)
	l.checkEndpoints(c)
	user, password, file := l.by["etcd.username"], l.by["etcd.password"], l.by["etcd.password_file"]
	switch {
	case c.Password != "" && c.PasswordFile != "":
		l.at(file, "password is set too, at %s: give one of them", place(password.Range))
	case c.Username != "" && c.Password == "" && c.PasswordFile == "":
		l.at(user, "the etcd block needs password_file or password too")
	case c.Username == "" && c.Password != "":
		l.at(password, "the etcd block needs username too")
	case c.Username == "" && c.PasswordFile != "":
		l.at(file, "the etcd block needs username too")
	}
}

// checkKubernetes requires one source of the network's configuration. With a ConfigMap, the default of the other does
// not apply.
func (l *loader) checkKubernetes() {
	c := &l.cfg.Kubernetes
	if c.ConfigMap == "" {
		return
	}
	if file := l.by["kubernetes.net_conf"]; file != nil {
		l.at(l.by["kubernetes.config_map"], "net_conf is set too, at %s: give one of them", place(file.Range))
	}
	c.NetConf = ""
}

// checkEndpoints requires that all endpoints use TLS or none, because a client has one kind of connection, and that a
// tls block is used.
func (l *loader) checkEndpoints(c *Etcd) {
	if l.refused["etcd.endpoints"] {
		return
	}
	a := l.by["etcd.endpoints"]
	hasTLS := c.TLS != TLS{}
	first := ""
	for _, endpoint := range c.Endpoints {
		scheme, _, ok := strings.Cut(endpoint, "://")
		switch {
		case !ok && hasTLS:
			scheme = "https"
		case !ok:
			scheme = "http"
		}
		switch {
		case scheme == "http" && hasTLS && a == nil:
			l.report(*l.blocks[StoreEtcd], "Invalid etcd block", "It has a tls block, but the default of endpoints is %s, "+
				"which uses no TLS: set endpoints", endpoint)
			return
		case scheme == "http" && hasTLS:
			l.at(a, "%s uses no TLS, but the etcd block has a tls block: write https:// or remove the tls block", endpoint)
			return
		case first != "" && scheme != first:
			l.at(a, "%s and %s differ in whether they use TLS: all endpoints must use it, or none",
				c.Endpoints[0], endpoint)
			return
		}
		first = scheme
	}
}

// checkTLS requires certificate and key together, and requires both for a listener with a ca_file.
func (l *loader) checkTLS(block string, t *TLS, listener bool) {
	cert, key, ca := l.by[block+".tls.cert_file"], l.by[block+".tls.key_file"], l.by[block+".tls.ca_file"]
	lone := func(a *hcl.Attribute, missing string) {
		l.at(a, "the %s block's tls needs %s too", block, missing)
	}
	switch {
	case t.CertFile != "" && t.KeyFile == "":
		lone(cert, "key_file")
	case t.KeyFile != "" && t.CertFile == "":
		lone(key, "cert_file")
	case listener && t.CAFile != "" && t.CertFile == "":
		lone(ca, "cert_file and key_file")
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
