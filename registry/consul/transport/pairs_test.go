package transport

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

func parsePairs(text string) (api.KVPairs, error) {
	p := &pairs{}
	err := p.parse(strings.NewReader(text))
	return p.list, err
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
			got, err := parsePairs(tt.text)
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
				if _, err := parsePairs(text[:i]); err == nil {
					t.Fatalf("what ends after %q is taken for whole", text[:i])
				}
			}
		})
	}
}

// TestParseLargeValues: what other programs wrote is not kept if it is too large for a record.
func TestParseLargeValues(t *testing.T) {
	t.Parallel()
	for _, size := range []int{registry.MaxRecordSize, registry.MaxRecordSize + 1, 500_000} {
		value := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("x"), size))
		got, err := parsePairs(fmt.Sprintf(`[{"Key":"a","Value":%q},{"Key":"b","Value":"YQ=="}]`, value))
		if err != nil || len(got) != 2 || len(got[0].Value) != size || string(got[1].Value) != "a" {
			t.Fatalf("%d bytes: %d pairs, %v", size, len(got), err)
		}
		isKept := &got[0].Value[0] != &registry.TooLarge(1)[0]
		if want := size <= registry.MaxRecordSize; isKept != want {
			t.Errorf("%d bytes are kept: %t", size, isKept)
		}
	}
}

// FuzzParsePairs: no input makes it panic, and it returns the same as the API client, whatever the records contain.
func FuzzParsePairs(f *testing.F) {
	f.Add([]byte(`[{"Key":"a","Value":"YQ==","Flags":1}]`), "leno/a", "session", []byte("value"), uint64(7))
	f.Add([]byte(`[{"A":[{"B":"\\"}]}`), "\x00\xff\u2028<", "\"", []byte(nil), uint64(1)<<63)
	f.Fuzz(func(t *testing.T, text []byte, key, session string, value []byte, index uint64) {
		_, _ = parsePairs(string(text))
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
		got, err := parsePairs(string(written))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
		if _, err := parsePairs(string(written[:len(written)-1-int(index%uint64(len(written)-1))])); err == nil {
			t.Error("a list that was cut off is taken for whole")
		}
	})
}
