package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// judgeHost judges what concerns all networks.
func (v *verdict) judgeHost() {
	f := v.facts
	if f.Offline != nil {
		v.judgeOffline(*f.Offline)
	}
	if len(f.Capabilities) > 0 {
		const tried = "read which capabilities the process has"
		missing := joinWords(f.Capabilities) + " missing"
		switch {
		case slices.Contains(f.Capabilities, "CAP_NET_ADMIN") && slices.ContainsFunc(f.Networks,
			func(n Network) bool { return n.Device.Wanted }):
			v.add(newFault(CheckRights, "", "", tried, missing,
				"run the agent as root or with CAP_NET_ADMIN and CAP_NET_RAW (examples/systemd/leno.service)"))
		case f.Active || f.InactiveReason != "":
			v.add(newUnknown(CheckRights, "", tried, missing+": not everything could be tested",
				"run it as root or with CAP_NET_RAW"))
		}
	} else if f.InactiveReason != "" {
		v.add(newUnknown(CheckPeers, "", "send packets to the other hosts", f.InactiveReason, ""))
	}
	addConnections(v)
	for _, c := range f.Health {
		if c.Name == CheckLogin {
			v.judgeLogin(c)
			continue
		}
		v.addCheck("", c)
	}
	if chains := f.FlannelChains; len(chains) > 0 {
		v.add(newOK(CheckRules, "", "look for firewall rules of flannel",
			"found %s. They are harmless. When flanneld no longer runs here, delete them or restart the host",
			joinWords(chains)))
	}
	if dirs := f.DirsWithoutCNI; len(dirs) > 0 {
		v.add(newWarning(CheckCNI, "", "", "look for a CNI configuration with the plugin leno-cni in "+joinWords(dirs),
			"none found: Nomad's jobs cannot use a network of leno",
			"copy leno.conflist to cni_config_dir of the Nomad client, and send the client SIGHUP"))
	}
}

// judgeLogin judges the agent's check of its login. If the agent has no token at all, the finding about the store says
// it.
func (v *verdict) judgeLogin(c api.Check) {
	if c.Status == api.Passing || errors.Is(v.facts.Store.Err, registry.ErrLogin) {
		return
	}
	saw, do := splitRemedy(c)
	v.add(newWarning(CheckLogin, "", "", "ask the agent for its check "+c.Name, saw, do))
}

// judgeOffline judges what keeps an agent from running.
func (v *verdict) judgeOffline(a Offline) {
	const tried = "ask the agent"
	saw := fmt.Sprintf("no agent answers at %s: %v", a.Address, a.Err)
	do := "start it (`systemctl start leno`) and run the command again; if it listens elsewhere, set -address or " +
		"LENO_ADDRESS"
	if a.Owner != "" {
		saw, do = saw+"; "+a.Owner, "set -address or LENO_ADDRESS to the address it listens on, or stop it if it hangs"
	}
	v.add(newFault(CheckAgent, "", "", tried, saw, do))
	switch {
	case a.Config != nil:
		v.add(newFault(CheckConfig, "", "", "read the configuration", strings.Join(strings.Fields(a.Config.Error()), " "),
			"correct it; `leno validate` shows all errors with their lines"))
	case len(a.Files) == 0:
		v.add(newUnknown(CheckConfig, "", "look for the configuration", "no configuration file was found",
			"name it with -config-file or -config-dir"))
	default:
		v.add(newOK(CheckConfig, "", "read the configuration", "%s: valid", strings.Join(a.Files, ", ")))
	}
	if a.AddressProblem != "" && a.Owner == "" {
		v.add(newFault(CheckAgent, "", "", "listen on the address of the agent's API", a.AddressProblem,
			"stop the program that listens there (ss -ltnp), or set http.address to another one"))
	}
}

// addCheck reports a health check that is not passing, in the agent's words.
func (v *verdict) addCheck(network string, c api.Check) {
	if c.Status == api.Passing || c.Status == "" {
		return
	}
	saw, do := advice.Split(c.Reason)
	if do == "" && (c.Name == CheckLease || c.Name == health.Keys) {
		saw, do = splitRemedy(c)
	}
	f := newWarning(c.Name, network, "", "ask the agent for its check "+c.Name, saw, do)
	if c.Status == api.Critical {
		f.Status = api.FindingFault
	}
	v.add(f)
}

// splitRemedy returns the reason of a check without what to do about it, and that. It follows the last semicolon, as in
// registry.RefusedError and registry.LoginError.
func splitRemedy(c api.Check) (saw, do string) {
	if i := strings.LastIndex(c.Reason, "; "); i >= 0 && c.Status != api.Passing {
		return c.Reason[:i], c.Reason[i+2:]
	}
	return c.Reason, ""
}

// A storeText holds the words for one kind of store.
type storeText struct {
	check string // the name of its check
	name  string // "Consul"
	user  string // what has its rights

	// What to do if the agent's secret cannot be read, if it lacks rights, and if the store does not answer.
	noSecret, denied, unreachable string
}

// textOf returns the words for a kind of store.
func textOf(kind string) storeText {
	switch kind {
	case config.StoreKubernetes:
		return storeText{
			check: CheckKubernetes,
			name:  "Kubernetes",
			user:  "user",
			noSecret: "renew the credentials in kubernetes.kubeconfig, or the token of the agent's service account: " +
				"a running agent reads them again by itself",
			denied: "give the agent's user the rights to get, list and watch nodes and to patch nodes/status",
			unreachable: "packets do not depend on it. Check that the API server answers (`kubectl get nodes`), " +
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
			unreachable: "packets do not depend on it. Check that etcd runs and has a leader (`etcdctl endpoint status " +
				"--cluster`), and that etcd.endpoints is right",
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
		unreachable: "packets do not depend on it. Check that Consul runs here and has a leader (`consul members`, " +
			"`consul operator raft list-peers`), and that consul.address is right",
	}
}

// judgeStore judges what concerns the store for all networks.
func (v *verdict) judgeStore() {
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
		v.add(newFault(text.check, "", "", tried, s.Name+": "+refused.Err.Error(), refused.Remedy))
	case errors.As(s.Err, &login):
		v.add(newFault(text.check, "", "", tried, s.Name+": "+login.Err.Error(), login.Remedy))
	case errors.Is(s.Err, registry.ErrToken):
		v.add(newFault(text.check, "", "", tried, s.Name+": "+s.Err.Error(), text.noSecret))
	case errors.Is(s.Err, registry.ErrDenied):
		v.add(newFault(text.check, "", "", tried, s.Name+": "+s.Err.Error(), text.denied))
	case s.Err != nil:
		v.add(newFault(text.check, "", "", tried, s.Name+": "+registry.Reason(s.Err), text.unreachable))
		return
	default:
		v.add(newOK(text.check, "", tried, "%s answers", s.Name))
	}
	v.judgeRights(s)
}

func (v *verdict) judgeRights(s Store) {
	text := textOf(s.Kind)
	tried := fmt.Sprintf("ask %s what the agent's %s allows", text.name, text.user)
	if s.RightsErr != nil {
		if errors.Is(s.RightsErr, registry.ErrDenied) && s.Err == nil || !errors.Is(s.RightsErr, registry.ErrDenied) {
			v.add(newUnknown(CheckACL, "", tried, s.RightsErr.Error(), ""))
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
		saw, do := "it lacks the rights needed "+joinWords(purposes), "add to its policy: "+strings.Join(rules, "  ")
		if s.NoToken {
			saw = "the agent has no token, and without one, it lacks the rights needed " + joinWords(purposes)
			do = "create a token with the rules of examples/consul/policy.hcl, and set consul.token_file to a file that " +
				"contains it"
		}
		v.add(newFault(CheckACL, "", "", tried, saw, do))
	case len(s.Rights) > 0:
		v.add(newOK(CheckACL, "", tried, "it has all %d rights", len(s.Rights)))
	}
}
