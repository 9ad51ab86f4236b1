package consul

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/lenonet/leno/registry"
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
	agent consulAgent
	conn  connection
}

// Rights returns each rule that an agent needs, by examples/consul/policy.hcl, and whether this client's token grants
// it, without using the right. It is empty in a Consul without ACLs, where no right can be missing. ErrDenied means
// that Consul does not know the token.
func (r rightsChecker) Rights(ctx context.Context, w registry.RequiredRights) ([]registry.Right, error) {
	// A session belongs to the node of the Consul agent that creates it. Where the name of that node may not be read,
	// sessions are left out.
	node, err := r.agent.nodeName(ctx)
	if err != nil && !errors.Is(err, registry.ErrDenied) {
		return nil, fmt.Errorf("rights: %w", err)
	}
	wanted := entitlements(r.kv.keys, w, node)
	var questions []authorization
	for _, e := range wanted {
		questions = append(questions, e.ask...)
	}
	var answers []authorization
	for rest := questions; len(rest) > 0; {
		n := min(len(rest), maxQuestions)
		got, err := r.authorize(ctx, rest[:n])
		if err != nil {
			return nil, fmt.Errorf("rights: %w", err)
		}
		if got == nil {
			return nil, nil
		}
		answers, rest = append(answers, got...), rest[n:]
	}
	out := make([]registry.Right, 0, len(wanted))
	for _, e := range wanted {
		right := registry.Right{Rule: e.rule, For: e.purpose, Granted: true}
		for range e.ask {
			right.Granted = right.Granted && answers[0].Allow
			answers = answers[1:]
		}
		for _, prefix := range e.list {
			if !right.Granted {
				break
			}
			if right.Granted, err = r.canList(ctx, prefix); err != nil {
				return nil, fmt.Errorf("rights: %w", err)
			}
		}
		out = append(out, right)
	}
	return out, nil
}

// canList reports whether the token may list keys. With acl.enable_key_list_policy, a rule with "read" does not allow
// it.
func (r rightsChecker) canList(ctx context.Context, prefix string) (bool, error) {
	opts, cancel := r.kv.query(ctx, read{stale: true})
	defer cancel()
	_, _, err := r.kv.api.KV().Keys(prefix, "/", opts)
	if err = classify(err); errors.Is(err, registry.ErrDenied) {
		return false, nil
	}
	return true, err
}

// entitlements returns the rules that an agent needs.
func entitlements(keys layout, w registry.RequiredRights, node string) []entitlement {
	prefix := keys.prefix
	rule := func(kind, segment, access string) string {
		return fmt.Sprintf("%s %q { policy = %q }", kind, segment, access)
	}
	key := func(access, key string) authorization {
		return authorization{Resource: "key", Access: access, Segment: key}
	}
	readAll := entitlement{
		rule:    rule("key_prefix", prefix+"/", "list"),
		purpose: "to read networks, reservations and the leases of all hosts",
		ask:     []authorization{key("read", keys.networks()+markerName)},
	}
	leases := entitlement{rule: rule("key_prefix", prefix+"/leases/", "write"), purpose: "to write this host's lease"}
	changes := entitlement{
		rule:    rule("key_prefix", prefix+"/changes/", "write"),
		purpose: "to tell the other hosts of it",
	}
	defines := entitlement{
		rule:    rule("key_prefix", keys.networks(), "write"),
		purpose: "to define the networks of its configuration",
	}
	for _, n := range w.Networks {
		readAll.ask = append(readAll.ask,
			key("read", keys.network(n)),
			key("read", keys.leases(n)+markerName),
			key("read", keys.reservations(n)+markerName))
		readAll.list = append(readAll.list, keys.reservations(n))
		leases.ask = append(leases.ask, key("write", keys.leases(n)+markerName))
		changes.ask = append(changes.ask, key("write", keys.changes(n)+markerName))
	}
	for _, n := range w.Defines {
		defines.ask = append(defines.ask, key("write", keys.network(n)))
	}
	session := entitlement{rule: rule("session", node, "write"), purpose: "for the session that holds the lease"}
	if node != "" {
		session.ask = []authorization{{Resource: "session", Access: "write", Segment: node}}
	}
	sessions := entitlement{
		rule:    rule("session_prefix", "", "read"),
		purpose: "to see which hosts have leases that Consul has lost",
		ask:     []authorization{{Resource: "session", Access: "read"}},
	}
	name := entitlement{
		rule:    rule("agent", cmp.Or(node, w.Node), "read"),
		purpose: "for this host's name in Consul, or set node_name",
	}
	if !w.Named {
		name.ask = []authorization{{Resource: "agent", Access: "read", Segment: cmp.Or(node, w.Node)}}
	}
	service := entitlement{rule: rule("service", w.Service, "write"), purpose: "for the agent's entry in the catalogue"}
	if w.Service != "" {
		service.ask = []authorization{{Resource: "service", Access: "write", Segment: w.Service}}
	}
	var out []entitlement
	for _, e := range []entitlement{readAll, leases, changes, defines, session, sessions, service, name} {
		if len(e.ask) > 0 {
			out = append(out, e)
		}
	}
	return out
}

// authorize returns the answers to questions; nil means that this Consul has no ACLs.
func (r rightsChecker) authorize(ctx context.Context, questions []authorization) ([]authorization, error) {
	body, err := json.Marshal(questions)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, tokenKey{}, r.kv.token), r.kv.conf.timeout)
	defer cancel()
	conf := r.conn.config
	where := url.URL{
		Scheme: cmp.Or(conf.Scheme, "http"),
		Host:   conf.Address,
		Path:   conf.PathPrefix + "/v1/internal/acl/authorize",
	}
	query := url.Values{}
	scope := map[string]string{"dc": conf.Datacenter, "ns": conf.Namespace, "partition": conf.Partition}
	for name, value := range scope {
		if value != "" {
			query.Set(name, value)
		}
	}
	where.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, where.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := (&http.Client{Transport: &transport{base: r.conn.base}}).Do(request)
	var status *statusError
	switch {
	case errors.As(err, &status) && status.Code == http.StatusUnauthorized: // "ACL support disabled"
		return nil, nil
	case err != nil:
		return nil, classify(err)
	}
	defer response.Body.Close()
	var out []authorization
	if err := json.NewDecoder(response.Body).Decode(&out); err != nil || len(out) != len(questions) {
		err = cmp.Or(err, errors.New("some are missing"))
		return nil, fmt.Errorf("consul's answer about rights cannot be read: %d of %d, %w",
			len(out), len(questions), err)
	}
	return out, nil
}
