// Package flannel reads what flannel keeps in its store and translates it into leno's terms: a
// network, and a reservation for each host. It owns flannel's formats and the differences between
// the two. Its caller reads the files; only plan.go talks to the agent.
package flannel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	format "github.com/lenonet/leno/registry/flannel"
)

// maxDepth bounds how deep directories of an export are nested.
const maxDepth = 32

// Read parses one file: the JSON of etcd's version 3 (`etcdctl get --prefix -w json`) or version 2
// API, the plain output of etcdctl, a JSON object of keys and values, a single network
// configuration, or a host's subnet.env.
func Read(file string, data []byte) ([]Record, error) {
	text := bytes.TrimSpace(data)
	switch {
	case len(text) == 0:
		return nil, fmt.Errorf("%s: is empty; was the prefix right? flannel's is /coreos.com/network unless -etcd-prefix says otherwise", file)
	case text[0] == '{', text[0] == '[':
		return readJSON(file, data)
	case isEnv(text):
		return []Record{{File: file, Key: envKey, Value: string(text)}}, nil
	case text[0] == '#', bytes.HasPrefix(text, []byte("//")), bytes.HasPrefix(text, []byte("/*")):
		return nil, fmt.Errorf("%s: %w", file, format.FindComment(data))
	case text[0] == '/':
		return readPlain(file, text), nil
	}
	return nil, fmt.Errorf("%s: neither JSON nor keys and values as `etcdctl get --prefix /coreos.com/network` prints them, nor a subnet.env", file)
}

// readJSON reads a sequence of JSON documents.
func readJSON(file string, text []byte) (out []Record, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	for {
		var doc json.RawMessage
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if comment := format.FindComment(text); err != nil && comment != nil {
			return nil, fmt.Errorf("%s: %w", file, comment)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: not JSON near byte %d: %w", file, dec.InputOffset(), err)
		}
		records, err := readDocument(file, doc)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		out = append(out, records...)
	}
}

func readDocument(file string, doc json.RawMessage) ([]Record, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(doc, &members); err != nil {
		return nil, errors.New("a JSON object is wanted: an export of etcd, or keys and values")
	}
	_, kvs := members["kvs"]
	_, header := members["header"]
	_, node := members["node"]
	switch {
	case kvs || header:
		return readV3(file, doc)
	case node:
		return readV2(file, members["node"], 0)
	case format.IsConfig(members):
		return []Record{{File: file, Key: format.ConfigKey, Value: string(doc)}}, nil
	}
	return readTree(file, "", members, 0)
}

// readV3 reads etcd's response to a range request; keys and values are base64.
func readV3(file string, doc json.RawMessage) (out []Record, err error) {
	var answer struct {
		Kvs []struct{ Key, Value []byte }
	}
	if err := json.Unmarshal(doc, &answer); err != nil {
		return nil, fmt.Errorf("not an answer of etcd: %w", err)
	}
	if len(answer.Kvs) == 0 {
		return nil, errors.New("etcd had no such keys; was the prefix right? flannel's is /coreos.com/network unless -etcd-prefix says otherwise")
	}
	for _, kv := range answer.Kvs {
		out = append(out, Record{File: file, Key: string(kv.Key), Value: string(kv.Value)})
	}
	return out, nil
}

// readV2 reads a node of etcd's version 2, and the nodes in it.
func readV2(file string, raw json.RawMessage, depth int) (out []Record, err error) {
	var node struct {
		Key, Value string
		Dir        bool
		Expiration time.Time
		Nodes      []json.RawMessage
	}
	if err := json.Unmarshal(raw, &node); err != nil {
		return nil, fmt.Errorf("not a node of etcd's version 2: %w", err)
	}
	if depth > maxDepth {
		return nil, errTooDeep
	}
	if !node.Dir && node.Key != "" && len(node.Nodes) == 0 {
		out = append(out, Record{File: file, Key: node.Key, Value: node.Value, Expires: node.Expiration})
	}
	for _, n := range node.Nodes {
		more, err := readV2(file, n, depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

var errTooDeep = fmt.Errorf("objects lie more than %d deep in each other", maxDepth)

// readTree reads an object of keys and values; directories may be nested objects.
func readTree(file, dir string, members map[string]json.RawMessage, depth int) (out []Record, err error) {
	if depth > maxDepth {
		return nil, errTooDeep
	}
	for name, raw := range members {
		key := path.Join(dir, name)
		var text string
		var inner map[string]json.RawMessage
		switch {
		case json.Unmarshal(raw, &text) == nil && string(raw) != "null":
			out = append(out, Record{File: file, Key: key, Value: text})
		case json.Unmarshal(raw, &inner) != nil || isLeaf(path.Base(name), inner):
			out = append(out, Record{File: file, Key: key, Value: string(raw)})
		default:
			more, err := readTree(file, key, inner, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		}
	}
	slices.SortFunc(out, func(a, b Record) int { return strings.Compare(a.Key, b.Key) })
	return out, nil
}

// isLeaf reports whether an object is a value and not a directory: a configuration, or a lease,
// even a malformed one.
func isLeaf(name string, members map[string]json.RawMessage) bool {
	return name == format.ConfigKey || subnetLike.MatchString(name) || len(members) == 0
}

// readPlain reads a line for each key, followed by its value, which may span several lines.
func readPlain(file string, text []byte) (out []Record) {
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "/") {
			out = append(out, Record{File: file, Key: strings.TrimSpace(line)})
			continue
		}
		out[len(out)-1].Value += line
	}
	return out
}
