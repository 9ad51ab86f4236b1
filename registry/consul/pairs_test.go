package consul

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

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
		{name: "unknown members", text: `[{"New":{"a":["]}\"",{}]},"Key":"a","More":[1,[2]],"Also":true,"Partition":"p"}]`, want: api.KVPairs{{Key: "a"}}},
		{name: "escapes", text: `[{"Key":"a\u003c\"\\\n\u00e9ö\\"}]`, want: api.KVPairs{{Key: "a<\"\\\néö\\"}}},
		{name: "no list", text: `{"Key":"a"}`, fails: true},
		{name: "null", text: `null`, fails: true},
		{name: "an element that is no object", text: `["a"]`, fails: true},
		{name: "a number that is none", text: `[{"CreateIndex":"1"}]`, fails: true},
		{name: "a key that is none", text: `[{"Key":1}]`, fails: true},
		{name: "no base64", text: `[{"Value":"*"}]`, fails: true},
		{name: "more behind it", text: `[]]`, fails: true},
		{name: "a comma too many", text: `[{"Key":"a"},]`, fails: true},
		{name: "a comma too few", text: `[{"Key":"a"}{"Key":"b"}]`, fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parsePairs([]byte(tt.text))
			if (err != nil) != tt.fails {
				t.Fatalf("got %v, %v", got, err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			if len(tt.want) == 0 {
				return
			}
			for i := range tt.text {
				if _, err := parsePairs([]byte(tt.text[:i])); err == nil {
					t.Fatalf("what ends after %q is taken for whole", tt.text[:i])
				}
			}
		})
	}
}

// TestParseLargeValues: what other programs wrote is not kept if it is too large for a record.
func TestParseLargeValues(t *testing.T) {
	t.Parallel()
	for _, size := range []int{registry.MaxRecordSize, registry.MaxRecordSize + 1, 500_000, 500_001} {
		value := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("x"), size))
		text := fmt.Sprintf(`[{"Key":"a","Value":%q},{"Key":"b","Value":"YQ=="}]`, value)
		got, err := parsePairs([]byte(text))
		if err != nil || len(got) != 2 || len(got[0].Value) != size || string(got[1].Value) != "a" {
			t.Fatalf("%d bytes: %d pairs, %v", size, len(got), err)
		}
		isKept := &got[0].Value[0] != &registry.TooLarge(1)[0]
		if want := size <= registry.MaxRecordSize; isKept != want {
			t.Errorf("%d bytes are kept: %t", size, isKept)
		}
		if clone := cloneValue(got[0].Value); len(clone) != size || !isKept && &clone[0] != &got[0].Value[0] {
			t.Errorf("the copy of %d bytes has %d", size, len(clone))
		}
	}
}

// FuzzParsePairs: no input makes it panic, and it returns the same as the API client, whatever the records contain.
func FuzzParsePairs(f *testing.F) {
	f.Add([]byte(`[{"Key":"a","Value":"YQ==","Flags":1}]`), "leno/a", "session", []byte("value"), uint64(7))
	f.Add([]byte(`[{"A":[{"B":"\\"}]}`), "\x00\xff\u2028<", "\"", []byte(nil), uint64(1)<<63)
	f.Fuzz(func(t *testing.T, text []byte, key, session string, value []byte, index uint64) {
		_, _ = parsePairs(text)
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
		got, err := parsePairs(written)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
		if _, err := parsePairs(written[:len(written)-1-int(index%uint64(len(written)-1))]); err == nil {
			t.Error("a list that was cut off is taken for whole")
		}
	})
}

func BenchmarkParsePairs(b *testing.B) {
	var list api.KVPairs
	for i := range uint64(1000) {
		list = append(list, &api.KVPair{Key: "leno/leases/default/10.5.1.0-24", Session: "adf4238a-882b-9ddc-4a9d-5b6758e4159e",
			Value: bytes.Repeat([]byte("x"), 240), CreateIndex: 1000 + i, ModifyIndex: 2000 + i})
	}
	text, err := json.Marshal(list)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("ours", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := parsePairs(text); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encoding-json", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			var out api.KVPairs
			if err := json.Unmarshal(text, &out); err != nil {
				b.Fatal(err)
			}
		}
	})
}
