// Package rights asks Consul what a token allows.
package rights

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
	"github.com/lenonet/leno/registry/consul/keys"
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

// Checker asks Consul's ACLs what the token of a client allows.
type Checker struct {
	Client *transport.Client
	Agent  catalog.Agent
	Keys   keys.Layout
}

// Rights returns each rule that an agent needs, by examples/consul/policy.hcl, and whether this client's token grants
// it, without using the right. It is empty in a Consul without ACLs, where no right can be missing. ErrDenied means
// that Consul does not know the token.
func (r Checker) Rights(ctx context.Context, w registry.RequiredRights) (out []registry.Right, err error) {
	defer func() { err = registry.Wrap(err, "rights") }()
	// A session belongs to the node of the Consul agent that creates it. Where the name of that node may not be read,
	// sessions are left out.
	self, err := r.Agent.Self(ctx)
	if err != nil && !errors.Is(err, registry.ErrDenied) {
		return nil, err
	}
	for _, e := range entitlements(r.Keys, w, self.NodeName) {
		granted, err := r.isGranted(ctx, e)
		if status, ok := errors.AsType[*transport.StatusError](err); ok && status.Code == http.StatusUnauthorized {
			return nil, nil // Consul has no ACLs
		}
		if err != nil {
			return nil, err
		}
		out = append(out, registry.Right{Rule: e.rule, For: e.purpose, Granted: granted})
	}
	return out, nil
}

func (r Checker) isGranted(ctx context.Context, e entitlement) (bool, error) {
	for questions := range slices.Chunk(e.ask, maxQuestions) {
		var answers []authorization
		err := r.Client.Post(ctx, "/v1/internal/acl/authorize", questions, &answers)
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
func (r Checker) canList(ctx context.Context, prefix string) (bool, error) {
	opts, cancel := r.Client.Query(ctx, transport.Read{Stale: true})
	defer cancel()
	_, _, err := r.Client.API.KV().Keys(prefix, "/", opts)
	if err = transport.Classify(err); errors.Is(err, registry.ErrDenied) {
		return false, nil
	}
	return true, err
}

// entitlements returns the rules that an agent needs.
func entitlements(layout keys.Layout, w registry.RequiredRights, node string) (out []entitlement) {
	reads := []string{layout.Networks() + keys.Marker}
	var lists, leases, changes, definitions []string
	for _, n := range w.Networks {
		reads = append(reads, layout.Network(n), layout.Leases(n)+keys.Marker, layout.Reservations(n)+keys.Marker)
		lists = append(lists, layout.Reservations(n))
		leases = append(leases, layout.Leases(n)+keys.Marker)
		changes = append(changes, layout.Changes(n)+keys.Marker)
	}
	for _, n := range w.Defines {
		definitions = append(definitions, layout.Network(n))
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
	prefix := layout.Prefix
	add("key_prefix", prefix+"/", "list", "to read networks, reservations and the leases of all hosts", reads...)
	add("key_prefix", prefix+"/leases/", "write", "to write this host's lease", leases...)
	add("key_prefix", prefix+"/changes/", "write", "to tell the other hosts of it", changes...)
	add("key_prefix", layout.Networks(), "write", "to define the networks of its configuration", definitions...)
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
