package transport

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// parseText parses a whole text with one of the parsers.
func parseText[T any](text string, parse func(*json.Decoder) ([]T, error)) (list []T, err error) {
	err = parseAll(strings.NewReader(text), func(d *json.Decoder) (err error) { list, err = parse(d); return err })
	return list, err
}

// listOf parses a list of records.
func listOf(text string) (api.KVPairs, error) {
	return parseText(text, func(d *json.Decoder) ([]*api.KVPair, error) { return parsePairs(d) })
}

// resultsOf parses the answer to a transaction.
func resultsOf(text string) (api.KVPairs, error) {
	return parseText(text, func(d *json.Decoder) ([]*api.KVPair, error) { return parseResults(d) })
}

func TestParsePairs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		want       api.KVPairs
		fails      bool
	}{
		{name: "empty", text: ` [ ] `},
		{name: "as consul writes it", text: `[{"LockIndex":1,"Key":"leno/leases/default/10.5.1.0-24","Flags":3,"Value":"eyJ2IjoxfQ==",
			"Session":"adf4238a-882b-9ddc-4a9d-5b6758e4159e","CreateIndex":200,"ModifyIndex":18446744073709551615}]`,
			want: api.KVPairs{{Key: "leno/leases/default/10.5.1.0-24", LockIndex: 1, Flags: 3, Value: []byte(`{"v":1}`),
				Session: "adf4238a-882b-9ddc-4a9d-5b6758e4159e", CreateIndex: 200, ModifyIndex: 1<<64 - 1}}},
		{name: "two, no value, none at all", text: "[{\"Key\":\"a\",\"Value\":null},\n{\"Value\":\"\",\"Key\":\"b\"}]", want: api.KVPairs{{Key: "a"}, {Key: "b"}}},
		{name: "no list", text: `{"Key":"a"}`, fails: true},
		{name: "null", text: `null`, fails: true},
		{name: "an element that is no object", text: `["a"]`, fails: true},
		{name: "a null element", text: `[null]`, fails: true},
		{name: "an element without a key", text: `[{"Value":"YQ=="}]`, fails: true},
		{name: "more after the end", text: `[] []`, fails: true},
		{name: "no base64", text: `[{"Value":"*"}]`, fails: true},
		{name: "a comma too few", text: `[{"Key":"a"}{"Key":"b"}]`, fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := listOf(tt.text)
			if (err != nil) != tt.fails {
				t.Fatalf("got %v, %v", got, err)
			}
			if tt.fails {
				return
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			text := strings.TrimSpace(tt.text)
			for i := range text {
				if _, err := listOf(text[:i]); err == nil {
					t.Fatalf("what ends after %q is taken for whole", text[:i])
				}
			}
		})
	}
}

func TestParseResults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		want       api.KVPairs
		fails      bool
	}{
		{name: "no result", text: `{"Results":[],"Errors":null}`},
		{name: "only deletions", text: `{"Results":null,"Errors":null,"Index":0}`},
		{name: "nothing at all", text: `{}`},
		{name: "two, one of which does not exist", text: `{"Errors":null, "Results":[{"KV":{"LockIndex":0,"Key":"a","Flags":0,"Value":"YQ==","CreateIndex":7,
			"ModifyIndex":8}},{"KV":{"Key":"b","Value":null,"CreateIndex":0,"ModifyIndex":0}}],"Other":{"Results":[1]}}`,
			want: api.KVPairs{{Key: "a", Value: []byte("a"), CreateIndex: 7, ModifyIndex: 8}, {Key: "b"}}},
		{name: "a list", text: `[]`, fails: true},
		{name: "null", text: `null`, fails: true},
		{name: "results that are no list", text: `{"Results":{"KV":{"Key":"a"}}}`, fails: true},
		{name: "a result of another kind", text: `{"Results":[{"Node":{}}]}`, fails: true},
		{name: "a result without a key", text: `{"Results":[{"KV":{"Value":"YQ=="}}]}`, fails: true},
		{name: "more after the end", text: `{} {}`, fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := resultsOf(tt.text)
			if (err != nil) != tt.fails {
				t.Fatalf("got %v, %v", got, err)
			}
			if tt.fails {
				return
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			for i := range tt.text {
				if _, err := resultsOf(tt.text[:i]); err == nil {
					t.Fatalf("what ends after %q is taken for whole", tt.text[:i])
				}
			}
		})
	}
}

// TestParseLargeRecords: what other programs wrote is not kept if it is too large for a record.
func TestParseLargeRecords(t *testing.T) {
	t.Parallel()
	const list, results = `[{"Key":%q,"Value":%q},{"Key":"b","Value":"YQ=="}]`,
		`{"Results":[{"KV":{"Key":%q,"Value":%q}},{"KV":{"Key":"b","Value":"YQ=="}}],"Errors":null}`
	for _, size := range []int{registry.MaxRecordSize, registry.MaxRecordSize + 1, 500_000} {
		value := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("x"), size))
		key := "leno/" + strings.Repeat("é", size/2)
		for format, parse := range map[string]func(string) (api.KVPairs, error){list: listOf, results: resultsOf} {
			got, err := parse(fmt.Sprintf(format, key, value))
			if err != nil || len(got) != 2 || len(got[0].Value) != size || string(got[1].Value) != "a" || got[1].Key != "b" {
				t.Fatalf("%d bytes: %d pairs, %v", size, len(got), err)
			}
			isKept := &got[0].Value[0] != &registry.TooLarge(1)[0]
			if want := size <= registry.MaxRecordSize; isKept != want {
				t.Errorf("%d bytes are kept: %t", size, isKept)
			}
			checkCut(t, key, got[0].Key)
		}
		keys, err := parseText(fmt.Sprintf(`[%q,"b"]`, key), parseKeys)
		if err != nil || len(keys) != 2 || keys[1] != "b" {
			t.Fatalf("%d bytes: %d keys, %v", size, len(keys), err)
		}
		checkCut(t, key, keys[0])
	}
}

// checkCut checks that got is the beginning of a long key.
func checkCut(t *testing.T, key, got string) {
	t.Helper()
	if !strings.HasPrefix(key, got) || !utf8.ValidString(got) || len(got) < 4000 || len(got) > 5000 {
		t.Errorf("of a key with %d bytes, %d are kept: %.20q", len(key), len(got), got)
	}
}

// FuzzParsePairs: no input makes it panic, and it returns the same as the API client, whatever the records contain.
func FuzzParsePairs(f *testing.F) {
	f.Add([]byte(`[{"Key":"a","Value":"YQ==","Flags":1}]`), "leno/a", "session", []byte("value"), uint64(7))
	f.Add([]byte(`[{"A":[{"B":"\\"}]}`), "\x00\xff\u2028<", "\"", []byte(nil), uint64(1)<<63)
	f.Fuzz(func(t *testing.T, text []byte, key, session string, value []byte, index uint64) {
		_, _ = listOf(string(text))
		value = value[:min(len(value), registry.MaxRecordSize)]
		written, err := json.Marshal(api.KVPairs{
			{Key: key, Session: session, Value: value, CreateIndex: index, ModifyIndex: index / 2, LockIndex: index % 3, Flags: index},
			{Key: "b", Value: value},
		})
		if err != nil {
			t.Fatal(err)
		}
		var want api.KVPairs
		if err := json.Unmarshal(written, &want); err != nil {
			t.Fatal(err)
		}
		got, err := listOf(string(written))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
		if _, err := listOf(string(written[:len(written)-1-int(index%uint64(len(written)-1))])); err == nil {
			t.Error("a list that was cut off is taken for whole")
		}
	})
}
