package udp

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/lenonet/leno/backend"
)

func TestNormalize(t *testing.T) {
	tests := []struct {
		name, in, want string
		wrong          []string // options named in errors
	}{
		{name: "nothing", in: "", want: `{"port":8285,"mtu":0}`},
		{name: "empty object", in: "{}", want: `{"port":8285,"mtu":0}`},
		{name: "null", in: "null", want: `{"port":8285,"mtu":0}`},
		{name: "a port", in: `{"port":1}`, want: `{"port":1,"mtu":0}`},
		{name: "the last port", in: `{"port":65535}`, want: `{"port":65535,"mtu":0}`},
		{name: "an MTU", in: `{"mtu":1400}`, want: `{"port":8285,"mtu":1400}`},
		{name: "MTU too small", in: `{"mtu":67}`, wrong: []string{"mtu"}},
		{name: "MTU too large", in: `{"mtu":65536}`, wrong: []string{"mtu"}},
		{name: "port 0", in: `{"port":0}`, wrong: []string{"port"}},
		{name: "port too large", in: `{"port":65536}`, wrong: []string{"port"}},
		{name: "negative port", in: `{"port":-1}`, wrong: []string{"port"}},
		{name: "half a port", in: `{"port":1.5}`, wrong: []string{"port"}},
		{name: "port in quotes", in: `{"port":"8286"}`, want: `{"port":8286,"mtu":0}`},
		{name: "half a port in quotes", in: `{"port":"1.5"}`, wrong: []string{"port"}},
		{name: "no port in quotes", in: `{"port":"x"}`, wrong: []string{"port"}},
		{name: "null port", in: `{"port":null}`, wrong: []string{"port"}},
		{name: "unknown option", in: `{"vni":1}`, wrong: []string{"vni"}},
		{name: "all at once", in: `{"vni":1,"port":0,"gbp":true}`, wrong: []string{"gbp", "vni", "port"}},
		{name: "options are case sensitive", in: `{"Port":1}`, wrong: []string{"Port"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := normalize(json.RawMessage(tt.in))
			if tt.wrong == nil {
				if err != nil || string(got) != tt.want {
					t.Fatalf("got %s, %v; want %s", got, err, tt.want)
				}
				again, err := normalize(got)
				if err != nil || string(again) != tt.want {
					t.Fatalf("normalized again: %s, %v", again, err)
				}
				return
			}
			var errs []error
			if joined, ok := err.(interface{ Unwrap() []error }); ok {
				errs = joined.Unwrap()
			}
			if len(errs) != len(tt.wrong) {
				t.Fatalf("errors %v, want %d", err, len(tt.wrong))
			}
			for i, name := range tt.wrong {
				var opt *backend.OptionError
				if !errors.As(errs[i], &opt) || opt.Option != name || opt.Reason == "" {
					t.Errorf("error %d is %v, want an option error about %s", i, errs[i], name)
				}
			}
		})
	}
	for _, in := range []string{"[]", "7", "{", `"port"`} {
		if got, err := normalize(json.RawMessage(in)); err == nil {
			t.Errorf("%s gave %s", in, got)
		}
	}
}

func TestPeerPort(t *testing.T) {
	tests := []struct {
		name, in string
		want     uint16 // 0: an error
	}{
		{"port", `{"port":8285}`, 8285},
		{"a field of a later version", `{"port":1,"queues":2}`, 1},
		{"no port", `{}`, 0},
		{"nothing", ``, 0},
		{"null", `null`, 0},
		{"port 0", `{"port":0}`, 0},
		{"too large", `{"port":70000}`, 0},
		{"text", `{"port":"8285"}`, 0},
		{"not an object", `[8285]`, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			attrs, err := parseAttributes(json.RawMessage(tt.in))
			var got uint16
			if err == nil {
				got, err = attrs.peerPort()
			}
			if got != tt.want || (err == nil) != (tt.want != 0) {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
}
