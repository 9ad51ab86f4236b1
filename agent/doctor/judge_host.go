package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// host judges what concerns all networks.
func (v *verdict) host() {
	f := v.facts
	if f.Alone != nil {
		v.alone(*f.Alone)
	}
	if len(f.Capabilities) > 0 {
		const tried = "read which capabilities the process has"
		missing := and(f.Capabilities) + " missing"
		switch {
		case slices.Contains(f.Capabilities, "CAP_NET_ADMIN") && slices.ContainsFunc(f.Networks,
			func(n Network) bool { return n.Device.Wanted }):
			v.add(fault(CheckRights, "", "", tried, missing,
				"run the agent as root or with CAP_NET_ADMIN and CAP_NET_RAW (examples/systemd/leno.service)"))
		case f.Active || f.Inactive != "":
			v.add(unknown(CheckRights, "", tried, missing+": not all could be tried", "run it as root or with CAP_NET_RAW"))
		}
	} else if f.Inactive != "" {
		v.add(unknown(CheckPeers, "", "send packets to the other hosts", f.Inactive, ""))
	}
	for _, c := range f.Health {
		if c.Name == CheckLogin {
			v.login(c)
			continue
		}
		v.unwell("", c)
	}
	if chains := f.FlannelChains; len(chains) > 0 {
		v.add(well(CheckRules, "", "look for firewall rules of flannel",
			"there are %s. They do no harm; when flanneld no longer runs here, delete them, or restart the host", and(chains)))
	}
	if dirs := f.WithoutCNI; len(dirs) > 0 {
		v.add(warning(CheckCNI, "", "", "look for a CNI configuration with the plugin leno-cni in "+and(dirs),
			"there is none: Nomad has no network of leno for its jobs",
			"copy leno.conflist to cni_config_dir of the Nomad client, and send the client SIGHUP"))
	}
}

// login judges the agent's check of its login. If the agent has no token at all, the finding about the store says it.
func (v *verdict) login(c api.Check) {
	if c.Status == api.Passing || errors.Is(v.facts.Store.Err, registry.ErrLogin) {
		return
	}
	saw, do := c.Reason, ""
	if i := strings.LastIndex(c.Reason, "; "); i >= 0 { // as in registry.LoginError
		saw, do = c.Reason[:i], c.Reason[i+2:]
	}
	v.add(warning(CheckLogin, "", "", "asked the agent for its check "+c.Name, saw, do))
}

// alone judges what keeps an agent from running.
func (v *verdict) alone(a Alone) {
	const tried = "ask the agent"
	saw := fmt.Sprintf("none answers at %s: %v", a.Address, a.Err)
	do := "start it (`systemctl start leno`), and ask again for all that only it can see; -address and LENO_ADDRESS say " +
		"where it is"
	if a.Owner != "" {
		saw, do = saw+"; "+a.Owner, "ask it where it listens (-address, LENO_ADDRESS), or end it if it hangs"
	}
	v.add(fault(CheckAgent, "", "", tried, saw, do))
	switch {
	case a.Config != nil:
		v.add(fault(CheckConfig, "", "", "read the configuration", strings.Join(strings.Fields(a.Config.Error()), " "),
			"correct it; `leno validate` shows all errors with their lines"))
	case len(a.Files) == 0:
		v.add(unknown(CheckConfig, "", "look for the configuration", "no file of it was found",
			"name it with -config-file or -config-dir"))
	default:
		v.add(well(CheckConfig, "", "read the configuration", "%s can be used", strings.Join(a.Files, ", ")))
	}
	if a.Taken != "" && a.Owner == "" {
		v.add(fault(CheckAgent, "", "", "listen where the agent's API does", a.Taken,
			"end the program that listens there (ss -ltnp), or set http.address to another one"))
	}
}

// unwell reports a health check that is not passing, in the agent's words.
func (v *verdict) unwell(network string, c api.Check) {
	if c.Status == api.Passing || c.Status == "" {
		return
	}
	saw, do := advice.Split(c.Reason)
	f := warning(c.Name, network, "", "asked the agent for its check "+c.Name, saw, do)
	if c.Status == api.Critical {
		f.Status = api.FindingFault
	}
	v.add(f)
}

// A storeText holds the words for one kind of store.
type storeText struct {
	check string // the name of its check
	name  string // "Consul"
	user  string // what has its rights

	// What to do if the agent's secret cannot be read, if it lacks rights, and if the store does not answer.
	noSecret, denied, away string
}

// textOf returns the words for a kind of store.
func textOf(kind string) storeText {
	switch kind {
	case config.StoreKubernetes:
		return storeText{
			check:    CheckKubernetes,
			name:     "Kubernetes",
			user:     "user",
			noSecret: "see that the agent can read kubernetes.kubeconfig or the token of its service account",
			denied:   "give the agent's user the rights to get, list and watch nodes and to patch nodes/status",
			away: "packets do not depend on it. See that the API server answers (`kubectl get nodes`), " +
				"and that kubernetes.kubeconfig is right",
		}
	case config.StoreEtcd:
		return storeText{
			check: CheckEtcd,
			name:  "etcd",
			user:  "user",
			noSecret: "write the user's password into that file, or name another one (etcd.password_file): " +
				"a running agent reads it again on reload",
			denied: "give the agent a user that may read and write below etcd.prefix (etcd.username, etcd.password_file)",
			away: "packets do not depend on it. See that etcd runs and has a leader (`etcdctl endpoint status --cluster`), " +
				"and that etcd.endpoints is right",
		}
	}
	return storeText{
		check: CheckConsul,
		name:  "Consul",
		user:  "token",
		noSecret: "write the agent's token into that file, or name another one (consul.token_file): " +
			"a running agent reads it again by itself",
		denied: "give the agent a token with the rules of examples/consul/policy.hcl (consul.token_file), " +
			"or its role such a policy (consul.login)",
		away: "packets do not depend on it. See that Consul runs here and has a leader (`consul members`, " +
			"`consul operator raft list-peers`), and that consul.address is right",
	}
}

// store judges what concerns the store for all networks.
func (v *verdict) store() {
	s := v.facts.Store
	if s.Name == "" {
		return
	}
	text := textOf(s.Kind)
	const tried = "read a key and have a quorum confirm it"
	var login *registry.LoginError
	var refused *registry.RefusedError
	switch {
	case errors.As(s.Err, &refused):
		v.add(fault(text.check, "", "", tried, s.Name+": "+refused.Err.Error(), refused.Remedy))
	case errors.As(s.Err, &login):
		v.add(fault(text.check, "", "", tried, s.Name+": "+login.Err.Error(), login.Remedy))
	case errors.Is(s.Err, registry.ErrToken):
		v.add(fault(text.check, "", "", tried, s.Name+": "+s.Err.Error(), text.noSecret))
	case errors.Is(s.Err, registry.ErrDenied):
		v.add(fault(text.check, "", "", tried, s.Name+": "+s.Err.Error(), text.denied))
	case s.Err != nil:
		v.add(fault(text.check, "", "", tried, s.Name+": "+s.Err.Error(), text.away))
		return
	default:
		v.add(well(text.check, "", tried, "%s answers", s.Name))
	}
	v.rights(s)
}

func (v *verdict) rights(s Store) {
	text := textOf(s.Kind)
	tried := fmt.Sprintf("ask %s what the agent's %s allows", text.name, text.user)
	if s.RightsErr != nil {
		if errors.Is(s.RightsErr, registry.ErrDenied) && s.Err == nil || !errors.Is(s.RightsErr, registry.ErrDenied) {
			v.add(unknown(CheckACL, "", tried, s.RightsErr.Error(), ""))
		}
		return
	}
	var rules, purposes []string
	for _, r := range s.Rights {
		if !r.Granted {
			rules, purposes = append(rules, r.Rule), append(purposes, r.For)
		}
	}
	switch {
	case len(rules) > 0:
		v.list = slices.DeleteFunc(v.list, func(f api.Finding) bool { // this finding is more precise
			return f.Check == text.check && f.Status == api.FindingFault
		})
		v.add(fault(CheckACL, "", "", tried, "it lacks what is needed "+and(purposes),
			"add to its policy: "+strings.Join(rules, "  ")))
	case len(s.Rights) > 0:
		v.add(well(CheckACL, "", tried, "it has all %d rules", len(s.Rights)))
	}
}
