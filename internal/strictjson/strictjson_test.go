package strictjson

import (
	"net/netip"
	"testing"
)

type embedded struct {
	Port    int             `json:"port"`
	Subnets []netip.Prefix  `json:"subnets"`
	Labels  map[string]bool `json:"labels"`
}

type value struct {
	embedded
	Name  string     `json:"name"`
	At    netip.Addr `json:"at"`
	Share float64    `json:"share"`
	List  []embedded `json:"list"`
	Slot  uint16     `json:"slot"`
}

// TestDecode: an error names the member that is wrong, in the words of JSON.
func TestDecode(t *testing.T) {
	for _, tt := range []struct{ data, want string }{
		{`{"name":"a","port":1,"at":"192.0.2.1","share":0.5,"subnets":["10.0.0.0/8"],"labels":{"a":true}} `, ""},
		{`{}`, ""},
		{``, "it is empty, want a JSON object"},
		{`{`, "unexpected EOF"},
		{`[]`, "it is of type array, want object"},
		{`{} {}`, "more text follows the JSON object"},
		{`{} x`, "more text follows the JSON object"},
		{`{"nome":""}`, `nome: json: unknown field "nome"`},
		{`{"at":"192.0.2.1","nome":"","port":"1"}`, `nome: json: unknown field "nome"`},
		{`{"at":"x","list":"y"}`, `at: ParseAddr("x"): unable to parse IP`},
		{`{"name":5,"at":"x"}`, "name: it is of type number, want string"},
		{`{"port":"1","at":"x"}`, "port: it is of type string, want integer"},
		{`{"list":[{"prot":1}]}`, `list: json: unknown field "prot"`},
		{`{"slot":-1}`, "slot: -1 is out of range"},
		{`{"slot":70000}`, "slot: 70000 is out of range"},
		{`{"share":1e999}`, "share: 1e999 is out of range"},
		{`{"slot":1,"slot":2,"port":1,"labels":{"a":true},"labels":{"b":true}}`, ""},
		{`{"name":"a","port":"1"}`, "port: it is of type string, want integer"},
		{`{"port":1.5}`, "port: it is of type number 1.5, want integer"},
		{`{"name":1}`, "name: it is of type number, want string"},
		{`{"at":[]}`, "at: it is of type array, want string"},
		{`{"at":"x"}`, `at: ParseAddr("x"): unable to parse IP`},
		{`{"share":{}}`, "share: it is of type object, want number"},
		{`{"subnets":{}}`, "subnets: it is of type object, want array"},
		{`{"subnets":["10.0.0.0"]}`, `subnets: netip.ParsePrefix("10.0.0.0"): no '/'`},
		{`{"labels":{"a":1}}`, "labels: it is of type number, want boolean"},
		{`{"list":[{"port":1},1]}`, "list: it is of type number, want object"},
	} {
		got := ""
		if err := Decode([]byte(tt.data), new(value)); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.data, got, tt.want)
		}
	}
}
