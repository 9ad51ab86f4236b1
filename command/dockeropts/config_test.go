package dockeropts

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/internal/testkit/programs"
)

// config parses a daemon.json.
func config(t *testing.T, text string) Config {
	t.Helper()
	c, err := ReadConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCheck: the setting in the way is named.
func TestCheck(t *testing.T) {
	n := Network{Name: "default", Gateways: gateways(both...), Pools: gateways("10.5.0.0/16", "fd00:5::/48")}
	for text, want := range map[string]string{
		``: "", `{}`: "", `{"bridge":""}`: "",
		`{"bridge":"br0","log-driver":"json-file"}`:                                                        `bridge is "br0", which excludes bip`,
		`{"bridge":"none","iptables":false}`:                                                               `bridge is "none"`,
		`{"bip":"192.168.100.1/24","fixed-cidr":"192.168.100.128/25","default-gateway":"192.168.100.254"}`: "fixed-cidr is 192.168.100.128/25, which is not in this host's subnet 10.5.34.0/24: remove it; default-gateway is 192.168.100.254",
		`{"default-gateway":"192.168.100.254"}`:                                                            "default-gateway is 192.168.100.254",
		`{"fixed-cidr":"10.5.0.0/16"}`:                                                                     "fixed-cidr is 10.5.0.0/16",
		`{"fixed-cidr":"10.5.34.128/25","default-gateway":"10.5.34.254"}`:                                  "",
		`{"fixed-cidr-v6":"fdd4:95c2:f557::/64"}`:                                                          "fixed-cidr-v6 is fdd4:95c2:f557::/64",
		`{"default-gateway-v6":"fd00:5:0:23::1"}`:                                                          "default-gateway-v6 is fd00:5:0:23::1",
		`{"default-address-pools":[{"base":"10.5.0.0/16","size":24}]}`:                                     "default-address-pools has 10.5.0.0/16, which overlaps 10.5.0.0/16 of network default",
		`{"default-address-pools":[{"base":"10.0.0.0/8","size":24}]}`:                                      "default-address-pools has 10.0.0.0/8",
		`{"default-address-pools":[{"base":"10.6.0.0/16","size":24},{},7]}`:                                "",
		`{"hosts":["fd://"],"ip-masq":true,"ip6tables":false,"bridge":null}`:                               "",
	} {
		err := config(t, text).Check(n)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	four := Network{Name: "four", Gateways: []netip.Prefix{n.Gateways[0]}}
	if err := config(t, `{"fixed-cidr-v6":"fdd4:95c2:f557::/64"}`).Check(four); err != nil {
		t.Errorf("IPv6 of Docker's own: %v", err)
	}
}

// TestBeside: no flag is in daemon.json, too.
func TestBeside(t *testing.T) {
	for _, tt := range []struct{ text, want, err string }{
		{text: `{"debug":true}`, want: "--bip=10.5.34.1/24 --ip-masq=false --mtu=1450"},
		{text: "\ufeff" + `{"mtu":1450,"ip-masq":false}`, want: "--bip=10.5.34.1/24"},
		{text: `{"bip":"172.26.0.1/16","mtu":1400}`, err: "bip is 172.26.0.1/16, mtu is 1400, and dockerd does not start with a flag for a setting of the file"},
		{text: `{"mtu":1400,"fixed-cidr":"10.6.0.0/24"}`, err: "(-format=json); fixed-cidr is 10.6.0.0/24"},
		{text: `{"mtu":1400}`, err: "mtu is 1400"},
		{text: `{"ip-masq":true}`, err: "ip-masq is true"},
	} {
		got, err := options().Beside(config(t, tt.text), Network{Gateways: gateways(both...)})
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: %v, want %q", tt.text, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
		}
		if diff := cmp.Diff(tt.want, strings.Join(got.Flags(), " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.text, diff)
		}
	}
}

// TestValidate runs programs that answer as dockerd does.
func TestValidate(t *testing.T) {
	for name, tt := range map[string]struct{ script, want string }{
		"accepts":         {script: `cmp "${2#--config-file=}" "$FILE" && echo configuration OK >&2`},
		"not installed":   {},
		"before 23.0":     {script: `echo "unknown flag: --validate" >&2; exit 125`},
		"cannot run":      {script: "exit 127"},
		"does not accept": {script: `echo "unable to configure the Docker daemon with file ${2#--config-file=}: unknown key" >&2; exit 1`, want: "with file the file: unknown key"},
	} {
		t.Run(name, func(t *testing.T) {
			bin, dir := t.TempDir(), t.TempDir()
			t.Setenv("PATH", bin+":/bin:/usr/bin")
			t.Setenv("FILE", filepath.Join(bin, "expected"))
			if err := os.WriteFile(filepath.Join(bin, "expected"), []byte("{}"), 0o644); err != nil {
				t.Fatal(err)
			}
			if tt.script == "" {
				t.Setenv("PATH", bin)
			} else if err := programs.Write(filepath.Join(bin, "dockerd"), []byte("#!/bin/sh\n"+tt.script+"\n")); err != nil {
				t.Fatal(err)
			}
			err := Validate(t.Context(), filepath.Join(dir, "daemon.json"), []byte("{}"))
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}
