package command

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/lenonet/leno/command/cli"
)

// TestFromFlannel: flannel's configuration becomes a definition with the values that flannel uses.
func TestFromFlannel(t *testing.T) {
	s := networkSource{meta: cli.Meta{Stdin: strings.NewReader(netConf)}, flannel: "blue"}
	got, err := s.read("-")
	if err != nil || len(got) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	const want = `{"name":"blue","pools":[{"prefix":"10.9.0.0/16","subnet_len":25,"min":"10.9.0.128","max":"10.9.255.128"}],` +
		`"backend":{"type":"vxlan","direct_routing":true,"gbp":false,"port":8472,"vni":1}`
	text, err := json.Marshal(got[0])
	if err != nil || !bytes.HasPrefix(text, []byte(want)) {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
}

// TestFromFlannelMTU: flannel's MTU is that of the underlay, and the definition has the one of containers.
func TestFromFlannelMTU(t *testing.T) {
	s := networkSource{meta: cli.Meta{Stdin: strings.NewReader(`{"Network":"10.9.0.0/16","Backend":{"Type":"vxlan","MTU":1400}}`)}, flannel: "blue"}
	got, err := s.read("-")
	if err != nil || len(got) != 1 || !bytes.Contains(got[0].Backend, []byte(`"mtu":1350`)) {
		t.Errorf("%+v, %v", got, err)
	}
}
