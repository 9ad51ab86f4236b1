package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/catalog"
	"github.com/lenonet/leno/registry/consul/transport"
)

// authorization is one question to Consul's ACLs and its answer, in the format of /v1/internal/acl/authorize. Consul's
// own UI depends on that endpoint, which decides without side effects.
type authorization struct {
	Resource, Segment, Access string
	Allow                     bool `json:",omitempty"`
}

// maxQuestions is the number of questions that Consul accepts at once.
const maxQuestions = 64

// entitlement is a rule and the questions that it must allow.
type entitlement struct {
	rule, purpose string
	ask           []authorization
	list          []string // prefixes to list, because only Consul's servers know if that is a right of its own
}

// rightsChecker asks Consul's ACLs what the token allows.
type rightsChecker struct {
	kv    *kv
	agent catalog.Agent
}

// Rights returns each rule that an agent needs, by examples/consul/policy.hcl, and whether this client's token grants
// it, without using the right. It is empty in a Consul without ACLs, where no right can be missing. ErrDenied means
// that Consul does not know the token.
func (r rightsChecker) Rights(ctx context.Context, w registry.RequiredRights) (out []registry.Right, err error) {
	defer func() { wrap(&err, "rights") }()
	// A session belongs to the node of the Consul agent that creates it. Where the name of that node may not be read,
	// sessions are left out.
	self, err := r.agent.Self(ctx)
	if err != nil && !errors.Is(err, registry.ErrDenied) {
		return nil, err
	}
	for _, e := range entitlements(r.kv.keys, w, self.NodeName) {
		granted, err := r.isGranted(ctx, e)
		if isDisabled(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, registry.Right{Rule: e.rule, For: e.purpose, Granted: granted})
	}
	return out, nil
}

// isDisabled reports whether an error says that Consul has no ACLs.
func isDisabled(err error) bool {
	var status *transport.StatusError
	return errors.As(err, &status) && status.Code == http.StatusUnauthorized
}

func (r rightsChecker) isGranted(ctx context.Context, e entitlement) (bool, error) {
	for questions := range slices.Chunk(e.ask, maxQuestions) {
		var answers []authorization
		err := r.kv.Post(ctx, "/v1/internal/acl/authorize", questions, &answers)
		if err == nil && len(answers) != len(questions) {
			err = fmt.Errorf("consul gave %d answers to %d questions about rights", len(answers), len(questions))
		}
		if err != nil {
			return false, transport.Classify(err)
		}
		if slices.ContainsFunc(answers, func(a authorization) bool { return !a.Allow }) {
			return false, nil
		}
	}
	for _, prefix := range e.list {
		if ok, err := r.canList(ctx, prefix); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// canList reports whether the token may list keys. With acl.enable_key_list_policy, a rule with "read" does not allow
// it.
func (r rightsChecker) canList(ctx context.Context, prefix string) (bool, error) {
	opts, cancel := r.kv.Query(ctx, transport.Read{Stale: true})
	defer cancel()
	_, _, err := r.kv.API.KV().Keys(prefix, "/", opts)
	if err = transport.Classify(err); errors.Is(err, registry.ErrDenied) {
		return false, nil
	}
	return true, err
}

// entitlements returns the rules that an agent needs.
func entitlements(keys layout, w registry.RequiredRights, node string) (out []entitlement) {
	reads := []string{keys.networks() + markerName}
	var lists, leases, changes, definitions []string
	for _, n := range w.Networks {
		reads = append(reads, keys.network(n), keys.leases(n)+markerName, keys.reservations(n)+markerName)
		lists = append(lists, keys.reservations(n))
		leases = append(leases, keys.leases(n)+markerName)
		changes = append(changes, keys.changes(n)+markerName)
	}
	for _, n := range w.Defines {
		definitions = append(definitions, keys.network(n))
	}
	add := func(kind, segment, policy, purpose string, segments ...string) {
		e := entitlement{rule: fmt.Sprintf("%s %q { policy = %q }", kind, segment, policy), purpose: purpose}
		access := policy
		if policy == "list" {
			access, e.list = "read", lists
		}
		for _, s := range segments {
			resource := strings.TrimSuffix(kind, "_prefix")
			e.ask = append(e.ask, authorization{Resource: resource, Access: access, Segment: s})
		}
		if len(e.ask) > 0 {
			out = append(out, e)
		}
	}
	prefix := keys.prefix
	add("key_prefix", prefix+"/", "list", "to read networks, reservations and the leases of all hosts", reads...)
	add("key_prefix", prefix+"/leases/", "write", "to write this host's lease", leases...)
	add("key_prefix", prefix+"/changes/", "write", "to tell the other hosts of it", changes...)
	add("key_prefix", keys.networks(), "write", "to define the networks of its configuration", definitions...)
	if node != "" {
		add("session", node, "write", "for the session that holds the lease", node)
	}
	add("session_prefix", "", "read", "to see which hosts have leases that Consul has lost", "")
	if w.Service != "" {
		add("service", w.Service, "write", "for the agent's entry in the catalogue", w.Service)
	}
	if name := cmp.Or(node, w.Node); !w.Named {
		add("agent", name, "read", "for this host's name in Consul, or set node_name", name)
	}
	return out
}
