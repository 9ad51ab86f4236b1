package transport

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// answer parses the body of an answer record by record, in place of the API client, which would keep all of it in
// memory, however large its keys and values are. The transport uses it when it finds one in the context.
type answer struct {
	parse    func(*json.Decoder) error
	empty    string // the body that the API client gets
	progress func() // called for each part of the body
}

// answerKey is the context key of an *answer.
type answerKey struct{}

// ask makes a request that reads, with a parser of its answer. Once a long answer has begun, it may take as long as it
// makes progress: an answer that is given up must be sent again as a whole.
func (c *Client) ask(ctx context.Context, r Read, a answer, request func(*api.QueryOptions) error) error {
	whole, giveUp := context.WithCancel(ctx)
	defer giveUp()
	limit := time.AfterFunc(c.patience(r), giveUp)
	defer limit.Stop()
	a.progress = func() { limit.Reset(c.Timeout) }
	err := request(c.options(context.WithValue(whole, answerKey{}, &a), r))
	if err != nil && whole.Err() != nil && !errors.Is(ctx.Err(), context.Canceled) { // both limits may be over at once
		return fmt.Errorf("%w: no answer in time: %w", registry.ErrUnavailable, context.DeadlineExceeded)
	}
	return Classify(err)
}

// read parses a body and returns the one for the API client.
func (a *answer) read(body io.ReadCloser) (io.ReadCloser, error) {
	defer body.Close()
	if err := parseAll(progressReader{body, a.progress}, a.parse); err != nil {
		return nil, fmt.Errorf("consul's answer: %w", err)
	}
	return io.NopCloser(strings.NewReader(a.empty)), nil
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

// parseAll parses text that contains nothing else.
func parseAll(text io.Reader, parse func(*json.Decoder) error) error {
	d := json.NewDecoder(text)
	if err := parse(d); err != nil {
		return err
	}
	// The connection is used again only if the answer was read to its end.
	if more, err := d.Token(); !errors.Is(err, io.EOF) {
		return cmp.Or(err, fmt.Errorf("%v follows it", more))
	}
	return nil
}

// parseMembers parses a list or an object, and calls member for each of its elements or names.
func parseMembers(d *json.Decoder, begin json.Delim, member func() error) error {
	if first, err := d.Token(); err != nil {
		return err
	} else if first != begin {
		return fmt.Errorf("%v instead of %v", first, begin)
	}
	return parseRest(d, member)
}

// parseRest parses a list or an object after its first character.
func parseRest(d *json.Decoder, member func() error) error {
	for d.More() {
		if err := member(); err != nil {
			return err
		}
	}
	_, err := d.Token() // the end, which an answer that was cut off lacks
	return err
}

// parsePairs parses a list of records. Keys and values that are too large for a record are replaced: see
// registry.BoundedKey and registry.Bounded.
func parsePairs(d *json.Decoder) (list api.KVPairs, err error) {
	err = parseMembers(d, '[', func() error {
		var pair api.KVPair
		err := d.Decode(&pair)
		if err == nil {
			list, err = appendPair(list, &pair)
		}
		return err
	})
	return list, err
}

func appendPair(list api.KVPairs, pair *api.KVPair) (api.KVPairs, error) {
	if pair == nil || pair.Key == "" {
		return nil, errors.New("a record has no key")
	}
	pair.Key, pair.Value = registry.BoundedKey(pair.Key), registry.Bounded(pair.Value)
	return append(list, pair), nil
}

// parseKeys parses a list of keys, like parsePairs.
func parseKeys(d *json.Decoder) (list []string, err error) {
	err = parseMembers(d, '[', func() error {
		var key string
		err := d.Decode(&key)
		list = append(list, registry.BoundedKey(key))
		return err
	})
	return list, err
}

// parseResults parses the answer to a transaction that took place, like parsePairs.
func parseResults(d *json.Decoder) (list api.KVPairs, err error) {
	err = parseMembers(d, '{', func() error {
		name, err := d.Token()
		if err != nil || name != "Results" {
			return cmp.Or(err, d.Decode(&json.RawMessage{}))
		}
		first, err := d.Token()
		if err != nil || first == nil { // null: there were only deletions
			return err
		}
		if first != json.Delim('[') {
			return fmt.Errorf("%v instead of results", first)
		}
		return parseRest(d, func() error {
			var result struct{ KV *api.KVPair }
			err := d.Decode(&result)
			if err == nil {
				list, err = appendPair(list, result.KV)
			}
			return err
		})
	})
	return list, err
}
