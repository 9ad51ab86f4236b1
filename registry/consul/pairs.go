package consul

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// pairs parses the records of an answer in place of the API client, and several times as fast: in a large network,
// reading lists is most of a host's computation. The transport fills it when it finds one in the context.
type pairs struct {
	progress func() // called when the answer begins, and for each part of it
	list     api.KVPairs
	size     int // of the answer, in bytes; before the answer, an estimate
}

// pairsKey is the context key of a *pairs.
type pairsKey struct{}

// read parses the records of a whole answer and returns a body without any.
func (p *pairs) read(body io.ReadCloser) (io.ReadCloser, error) {
	var data bytes.Buffer
	data.Grow(min(p.size+p.size/8, maxEstimate) + bytes.MinRead)
	_, err := data.ReadFrom(progressReader{body, p.progress})
	_ = body.Close()
	if err != nil {
		return nil, err
	}
	p.size = data.Len()
	if p.list, err = parsePairs(data.Bytes()); err != nil {
		return nil, fmt.Errorf("consul's list of records: %w", err)
	}
	return io.NopCloser(bytes.NewReader([]byte("[]"))), nil
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

// maxEstimate limits the memory that is reserved for an answer before it is read. The estimate is the size of the last
// list, into which other programs may have written.
const maxEstimate = 16 << 20

// usualValue is how many bytes a record has at most on average, unless other programs wrote some.
const usualValue = 1 << 10

var errPairs = errors.New("not as consul writes it")

// parsePairs parses a JSON list of key-value pairs. It skips members that it does not know; the error of a truncated
// list is io.ErrUnexpectedEOF.
func parsePairs(data []byte) (api.KVPairs, error) {
	s := scanner{data: data}
	if s.next() != '[' {
		return nil, s.wrong()
	}
	// A list is replaced as a whole, so its parts may share allocations.
	count := bytes.Count(data, []byte(`"ModifyIndex"`))
	all := make([]api.KVPair, 0, count)
	size := base64.StdEncoding.DecodedLen(len(data) - min(len(data), 150*count))
	values := make([]byte, 0, min(size, count*usualValue))
	for c := s.next(); c != ']'; {
		if c != '{' {
			return nil, s.wrong()
		}
		var pair api.KVPair
		if err := s.pair(&pair, &values); err != nil {
			return nil, err
		}
		all = append(all, pair)
		if c = s.next(); c == ',' {
			if c = s.next(); c == ']' {
				return nil, errPairs
			}
		} else if c != ']' {
			return nil, s.wrong()
		}
	}
	if s.next() != 0 {
		return nil, errPairs
	}
	list := make(api.KVPairs, len(all))
	for i := range all {
		list[i] = &all[i]
	}
	return list, nil
}

// scanner scans JSON.
type scanner struct {
	data []byte
	at   int
}

// wrong returns the error for something unexpected at the last byte read.
func (s *scanner) wrong() error {
	if s.at >= len(s.data) {
		return io.ErrUnexpectedEOF
	}
	return errPairs
}

// next returns the next byte that is not white space, 0 at the end.
func (s *scanner) next() byte {
	for s.at < len(s.data) {
		c := s.data[s.at]
		s.at++
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

// quoted returns the rest of a string after its first quote, unparsed, including the last quote.
func (s *scanner) quoted() []byte {
	start := s.at
	for s.at < len(s.data) {
		end := bytes.IndexByte(s.data[s.at:], '"')
		if end < 0 {
			break
		}
		s.at += end + 1
		slashes := 0
		for i := s.at - 2; i >= start && s.data[i] == '\\'; i-- {
			slashes++
		}
		if slashes%2 == 0 {
			return s.data[start:s.at]
		}
	}
	s.at = len(s.data)
	return nil
}

// value returns the next value, unparsed, or nil when there is none.
func (s *scanner) value() []byte {
	c := s.next()
	start := s.at - 1
	switch c {
	case 0:
		return nil
	case '"':
		if s.quoted() == nil {
			return nil
		}
	case '{', '[':
		for depth := 1; depth > 0; {
			switch s.next() {
			case '"':
				s.quoted()
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			case 0:
				return nil
			}
		}
	default:
		for s.at < len(s.data) && bytes.IndexByte([]byte(",:{}[]\" \n\t\r"), s.data[s.at]) < 0 {
			s.at++
		}
	}
	return s.data[start:s.at]
}

// pair parses the members of an object after its first brace, and appends their values to values.
func (s *scanner) pair(p *api.KVPair, values *[]byte) error {
	for c := s.next(); ; {
		if c == '}' {
			return nil
		}
		if c != '"' {
			return s.wrong()
		}
		name := s.quoted()
		if name == nil || s.next() != ':' {
			return s.wrong()
		}
		if err := member(p, string(name[:len(name)-1]), s.value(), values); err != nil {
			return fmt.Errorf("%q: %w", p.Key, err)
		}
		if c = s.next(); c == ',' {
			c = s.next()
		} else if c != '}' {
			return s.wrong()
		}
	}
}

func member(p *api.KVPair, name string, value []byte, values *[]byte) (err error) {
	if value == nil {
		return io.ErrUnexpectedEOF
	}
	switch name {
	case "Key":
		p.Key, err = plain(value)
	case "Session":
		p.Session, err = plain(value)
	case "CreateIndex":
		p.CreateIndex, err = strconv.ParseUint(string(value), 10, 64)
	case "ModifyIndex":
		p.ModifyIndex, err = strconv.ParseUint(string(value), 10, 64)
	case "LockIndex":
		p.LockIndex, err = strconv.ParseUint(string(value), 10, 64)
	case "Flags":
		p.Flags, err = strconv.ParseUint(string(value), 10, 64)
	case "Value":
		p.Value, err = decoded(value, values)
	}
	return err
}

// plain returns the string of a JSON value.
func plain(value []byte) (string, error) {
	if len(value) < 2 || value[0] != '"' {
		return "", errPairs
	}
	inside := value[1 : len(value)-1]
	for _, c := range inside {
		if c < ' ' || c >= 0x80 || c == '\\' {
			var s string
			err := json.Unmarshal(value, &s)
			return s, err
		}
	}
	return string(inside), nil
}

// cloneValue returns a copy of a value that a record can have, and value itself otherwise.
func cloneValue(value []byte) []byte {
	if len(value) > registry.MaxRecordSize {
		return registry.TooLarge(len(value))
	}
	return bytes.Clone(value)
}

// decoded returns the content of a base64 string, or nil for null. Of one that is too large for a record, it returns
// what registry.Bounded does.
func decoded(value []byte, values *[]byte) ([]byte, error) {
	if string(value) == "null" {
		return nil, nil
	}
	if len(value) < 2 || value[0] != '"' {
		return nil, errPairs
	}
	value = value[1 : len(value)-1]
	if size := base64.StdEncoding.DecodedLen(len(value)) - bytes.Count(value, []byte("=")); size > registry.MaxRecordSize {
		return registry.TooLarge(size), nil
	}
	start := len(*values)
	out, err := base64.StdEncoding.AppendDecode(*values, value)
	if err != nil {
		return nil, err
	}
	*values = out
	return out[start:len(out):len(out)], nil
}
