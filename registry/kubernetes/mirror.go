package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/replica"
)

// tree is what the API server says about the Nodes.
type tree = replica.Tree[*node]

const nodesPath = "/api/v1/nodes"

// List implements replica.Source. Without a resource version, the API server answers with the state in its storage,
// never an older one, and the list is whole because it has no limit.
func (c *connection) List(ctx context.Context) (*tree, error) {
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
			Continue        string `json:"continue"`
		} `json:"metadata"`
		Items []nodeObject `json:"items"`
	}
	if err := c.call(ctx, request{method: "GET", path: nodesPath}, &list); err != nil {
		return nil, registry.Wrap(err, "list nodes")
	}
	revision, err := strconv.ParseUint(list.Metadata.ResourceVersion, 10, 64)
	if err != nil || list.Metadata.Continue != "" {
		return nil, fmt.Errorf("list nodes: %w: the list is not whole", registry.ErrUncertain)
	}
	var nodes []*node
	for _, o := range list.Items {
		n, err := newNode(o, c.names)
		if err != nil {
			return nil, fmt.Errorf("list nodes: %w: %w", registry.ErrUncertain, err)
		}
		nodes = append(nodes, n)
	}
	return replica.NewTree(0, revision, nodes), nil
}

// Watch implements replica.Source with one request, which the API server ends every half an hour or so.
func (c *connection) Watch(
	ctx context.Context, after uint64, apply func(cluster uint64, changes ...replica.Change[*node]) error,
) error {
	body, err := c.open(ctx, request{method: "GET", path: nodesPath, query: url.Values{
		"watch":               {"true"},
		"resourceVersion":     {strconv.FormatUint(after, 10)},
		"allowWatchBookmarks": {"true"},
	}})
	if err != nil {
		return registry.Wrap(err, "watch nodes")
	}
	defer body.Close()
	dec := json.NewDecoder(body)
	for {
		var e struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		err := dec.Decode(&e)
		if err == io.EOF {
			return nil
		}
		var change replica.Change[*node]
		if err != nil {
			err = classify(ctx, err)
		} else if change, err = c.changeOf(e.Type, e.Object); err == nil {
			err = apply(0, change)
		}
		if err != nil {
			return registry.Wrap(err, "watch nodes")
		}
	}
}

// changeOf returns the change that an event of a watch tells.
func (c *connection) changeOf(kind string, object []byte) (replica.Change[*node], error) {
	var o struct {
		nodeObject
		Code int `json:"code"` // of an error
	}
	if err := json.Unmarshal(object, &o); err != nil {
		return replica.Change[*node]{}, fmt.Errorf("%w: %w", registry.ErrUnavailable, err)
	}
	if kind == "ERROR" {
		return replica.Change[*node]{}, statusError(o.Code, object)
	}
	n, err := newNode(o.nodeObject, c.names)
	if err != nil {
		return replica.Change[*node]{}, fmt.Errorf("%w: %w", registry.ErrUncertain, err)
	}
	change := replica.Change[*node]{Key: n.Key(), Revision: n.modified, Record: n}
	switch kind {
	case "DELETED":
		change.Record = nil
	case "BOOKMARK":
		change = replica.Change[*node]{Revision: n.modified}
	}
	return change, nil
}
