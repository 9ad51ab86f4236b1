package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/flannel"
)

// lenoAnnotation contains leno's own record of a lease, as registry.FormatLease returns it.
const lenoAnnotation = "leno.lenonet.io/lease"

// names are the names of flannel's annotations.
type names struct {
	managed, backendType, backendData, backendV6Data, publicIP, publicIPv6 string
	// The operator sets these: they are the public addresses that other hosts shall use.
	overwrite, overwriteV6 string
}

func namesOf(prefix string) names {
	return names{
		managed:       prefix + "/kube-subnet-manager",
		backendType:   prefix + "/backend-type",
		backendData:   prefix + "/backend-data",
		backendV6Data: prefix + "/backend-v6-data",
		publicIP:      prefix + "/public-ip",
		publicIPv6:    prefix + "/public-ipv6",
		overwrite:     prefix + "/public-ip-overwrite",
		overwriteV6:   prefix + "/public-ipv6-overwrite",
	}
}

// written returns the annotations that the host of a lease writes.
func (a names) written() []string {
	return []string{a.managed, a.backendType, a.backendData, a.backendV6Data, a.publicIP, a.publicIPv6, lenoAnnotation}
}

// nodeObject is what leno reads of a Node.
type nodeObject struct {
	Metadata struct {
		Name              string            `json:"name"`
		UID               string            `json:"uid"`
		ResourceVersion   string            `json:"resourceVersion"`
		CreationTimestamp time.Time         `json:"creationTimestamp"`
		Annotations       map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		PodCIDR  string   `json:"podCIDR"`
		PodCIDRs []string `json:"podCIDRs"`
	} `json:"spec"`
}

// node is the part of a Node that matters for its lease. It is immutable.
type node struct {
	name        string
	uid         string
	created     uint64            // seconds since 1970
	modified    uint64            // the resource version at which this part was first seen to be as it is
	version     string            // the resource version
	annotations map[string]string // flannel's and leno's
	podCIDRs    []string
	tooLarge    string // why an annotation was left out, "" if none was
}

func newNode(o nodeObject, a names) (*node, error) {
	modified, err := strconv.ParseUint(o.Metadata.ResourceVersion, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("node %s: resource version %q is not a number", o.Metadata.Name, o.Metadata.ResourceVersion)
	}
	n := &node{
		name:        o.Metadata.Name,
		uid:         o.Metadata.UID,
		created:     uint64(max(1, o.Metadata.CreationTimestamp.Unix())),
		modified:    modified,
		version:     o.Metadata.ResourceVersion,
		annotations: map[string]string{},
		podCIDRs:    o.Spec.PodCIDRs,
	}
	if len(n.podCIDRs) == 0 && o.Spec.PodCIDR != "" {
		n.podCIDRs = []string{o.Spec.PodCIDR}
	}
	for _, name := range append(a.written(), a.overwrite, a.overwriteV6) {
		value, ok := o.Metadata.Annotations[name]
		if len(value) > registry.MaxRecordSize {
			n.tooLarge = fmt.Sprintf("annotation %s has %d bytes, at most %d are read", name, len(value), registry.MaxRecordSize)
			value = ""
		}
		if ok {
			n.annotations[name] = value
		}
	}
	return n, nil
}

// Key implements replica.Record.
func (n *node) Key() string { return keyOf(n.name) }

// Modified implements replica.Record.
func (n *node) Modified() uint64 { return n.modified }

// Follows implements replica.Record.
func (n *node) Follows(o *node) bool { return n.modified > o.modified }

// Same implements replica.Record: both are the same Node with the same lease. Kubelets change the other parts of their
// Node all the time.
func (n *node) Same(o *node) bool {
	return n.name == o.name && n.uid == o.uid && n.tooLarge == o.tooLarge && slices.Equal(n.podCIDRs, o.podCIDRs) &&
		maps.Equal(n.annotations, o.annotations)
}

// nodePath returns the path of a Node.
func nodePath(name string) string { return "/api/v1/nodes/" + url.PathEscape(name) }

// node reads one Node.
func (c *connection) node(ctx context.Context, name string) (*node, error) {
	var o nodeObject
	if err := c.call(ctx, request{method: "GET", path: nodePath(name)}, &o); err != nil {
		return nil, registry.Wrap(err, "read node %s", name)
	}
	return newNode(o, c.names)
}

// annotate changes annotations of a Node, unless the Node has changed since it was read: then the error is errRefused.
// Null values remove annotations.
func (c *connection) annotate(ctx context.Context, n *node, changes map[string]*string) (*node, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.uid, "resourceVersion": n.version, "annotations": changes},
	})
	if err != nil {
		return nil, err
	}
	// Flannel's role, too, may only write the status, which includes annotations.
	var o nodeObject
	err = c.call(ctx, request{method: "PATCH", path: nodePath(n.name) + "/status", patch: patch}, &o)
	if err != nil {
		return nil, registry.Wrap(err, "annotate node %s", n.name)
	}
	return newNode(o, c.names)
}

// subnets returns the Node's subnet of each pool, IPv4 first, without the pools of which it has none. Kubernetes may
// assign subnets of a family that the network has not.
func (n *node) subnets(plan registry.Plan) (out []netip.Prefix, err error) {
	for _, pool := range plan {
		for _, text := range n.podCIDRs {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("podCIDR %.80q: %w: not a subnet", text, registry.ErrInvalid)
			}
			if p.Addr().Is4() == pool.Prefix.Addr().Is4() {
				out = append(out, p.Masked())
				break
			}
		}
	}
	return out, nil
}

// hasLease reports whether a host has written its lease to the Node, and Kubernetes has assigned a subnet.
func (n *node) hasLease(a names) bool {
	_, own := n.annotations[lenoAnnotation]
	return len(n.podCIDRs) > 0 && (own || n.annotations[a.managed] == "true")
}

// lease returns the lease of a Node that has one. foreign is true if flannel wrote it.
func (n *node) lease(network registry.Network, a names) (l registry.Lease, foreign bool, err error) {
	subnets, err := n.subnets(network.Plan)
	if err != nil {
		return l, false, err
	}
	if len(subnets) == 0 {
		return l, false, registry.InvalidRecord(fmt.Sprintf("podCIDRs %s are of no pool of the network", n.podCIDRs))
	}
	if n.annotations[a.managed] != "true" {
		return l, false, registry.InvalidRecord("annotation " + a.managed + ` is not "true", so hosts with flannel ignore it`)
	}
	if n.tooLarge != "" {
		return l, false, registry.InvalidRecord(n.tooLarge)
	}
	value, err := n.value(a)
	if err != nil {
		return l, false, err
	}
	l, foreign, err = flannel.ParseLease(network, flannel.SubnetKey(subnets), value)
	if err != nil {
		return registry.Lease{}, foreign, err
	}
	if foreign {
		l.Node = n.name
	}
	l.Session, l.CreateIndex, l.ModifyIndex = n.uid, n.created, n.modified
	if !foreign {
		l.Session = n.session(l.NodeID)
	}
	return l, foreign, nil
}

// sessionSeparator is between the uid of a Node and the node id of its host.
const sessionSeparator = "/"

// session returns the session of the lease that a host with leno has on the Node.
func (n *node) session(nodeID string) string { return n.uid + sessionSeparator + nodeID }

// value returns the annotations as the value of a lease that flannel writes to etcd.
func (n *node) value(a names) ([]byte, error) {
	members := map[string]json.RawMessage{}
	for name, member := range map[string]string{
		a.publicIP:    "PublicIP",
		a.publicIPv6:  "PublicIPv6",
		a.backendType: "BackendType",
	} {
		if text := n.annotations[name]; text != "" {
			members[member], _ = json.Marshal(text) // a string always marshals
		}
	}
	for name, member := range map[string]string{
		a.backendData:   "BackendData",
		a.backendV6Data: "BackendV6Data",
		lenoAnnotation:  "leno",
	} {
		text, ok := n.annotations[name]
		switch {
		case name == lenoAnnotation && !ok:
			continue
		case name != lenoAnnotation && (text == "" || text == "null"):
			continue
		case !json.Valid([]byte(text)):
			return nil, registry.InvalidRecord("annotation " + name + " is not JSON")
		}
		members[member] = json.RawMessage(text)
	}
	return json.Marshal(members)
}

// annotations returns the annotations of a leno host's lease.
func annotations(network registry.Network, l registry.Lease, a names) (map[string]string, error) {
	value, err := flannel.FormatLease(network, l)
	if err != nil {
		return nil, err
	}
	attributes, err := flannel.ParseAttributes(value)
	if err != nil {
		return nil, err
	}
	record, err := registry.FormatLease(l)
	if err != nil {
		return nil, err
	}
	out := map[string]string{
		a.managed:      "true",
		a.backendType:  l.Backend.Type,
		lenoAnnotation: string(record),
	}
	orNull := func(data json.RawMessage) string { return cmp.Or(string(data), "null") }
	for _, p := range network.Plan {
		if p.Prefix.Addr().Is4() {
			out[a.publicIP], out[a.backendData] = attributes.PublicIP.String(), orNull(attributes.BackendData)
		} else {
			out[a.backendV6Data] = orNull(attributes.BackendV6Data)
		}
	}
	if ip := attributes.PublicIP; ip != nil && !ip.IsUnspecified() {
		out[a.publicIP] = ip.String()
	}
	if ip := attributes.PublicIPv6; ip != nil {
		out[a.publicIPv6] = ip.String()
	}
	return out, nil
}
