package transport

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// listPairs reads everything below a prefix. It calls progress for each part of the answer. Of values that are too
// large for a record, it returns what registry.Bounded does.
func (c *Client) listPairs(prefix string, q *api.QueryOptions, progress func()) (api.KVPairs, *api.QueryMeta, error) {
	found := &pairs{progress: progress}
	_, meta, err := c.API.KV().List(prefix, q.WithContext(context.WithValue(q.Context(), pairsKey{}, found)))
	return found.list, meta, err
}

// pairs parses the records of a list in place of the API client, which would keep the whole answer in memory and all
// values in it, however large. The transport fills it when it finds one in the context.
type pairs struct {
	progress func()
	list     api.KVPairs
}

// pairsKey is the context key of a *pairs.
type pairsKey struct{}

// read parses the records of an answer and returns a body without any.
func (p *pairs) read(body io.ReadCloser) (io.ReadCloser, error) {
	defer body.Close()
	if err := p.parse(progressReader{body, p.progress}); err != nil {
		return nil, fmt.Errorf("consul's list of records: %w", err)
	}
	return io.NopCloser(bytes.NewReader([]byte("[]"))), nil
}

// parse parses a JSON list of records.
func (p *pairs) parse(text io.Reader) error {
	list := json.NewDecoder(text)
	if first, err := list.Token(); err != nil {
		return err
	} else if first != json.Delim('[') {
		return fmt.Errorf("it begins with %v", first)
	}
	for list.More() {
		var pair api.KVPair
		if err := list.Decode(&pair); err != nil {
			return err
		}
		if pair.Key == "" {
			return errors.New("a record has no key")
		}
		pair.Value = registry.Bounded(pair.Value)
		p.list = append(p.list, &pair)
	}
	if _, err := list.Token(); err != nil { // the end, which an answer that was cut off lacks
		return err
	}
	// The connection is used again only if the answer was read to its end.
	if more, err := list.Token(); !errors.Is(err, io.EOF) {
		return cmp.Or(err, fmt.Errorf("%v follows it", more))
	}
	return nil
}

// progressReader calls progress before each read.
type progressReader struct {
	io.Reader
	progress func()
}

func (r progressReader) Read(b []byte) (int, error) {
	r.progress()
	return r.Reader.Read(b)
}
