package cni

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestAcceptRA: an operator's bridge has its accept_ra after the plugin has set 0, also if the call was killed before.
func TestAcceptRA(t *testing.T) {
	add := func(t *testing.T, d delegation) {
		restore, err := keepAcceptRA(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		now, err := kernel.Sysctl(acceptRA(d.Bridge)...)
		if saved, _ := os.ReadFile(filepath.Join(d.DataDir, "accept_ra", d.Bridge)); err != nil || now != "0" && string(saved) != now {
			t.Errorf("%q is saved, %s found, %v", saved, now, err)
		}
		if _, err := kernel.SetSysctl("0", acceptRA(d.Bridge)...); err != nil {
			t.Fatal(err)
		}
		if err := restore(); err != nil {
			t.Error(err)
		}
	}
	del := func(t *testing.T, d delegation) {
		end := new(plugin).withTidying(func(context.Context, *skel.CmdArgs) error { return nil })
		conf := `{"cniVersion":"1.0.0","name":"x","type":"leno-cni","dataDir":"` + d.DataDir + `"}`
		if err := end(t.Context(), &skel.CmdArgs{StdinData: []byte(conf)}); err != nil {
			t.Error(err)
		}
	}
	atWork := func(t *testing.T, d delegation) {
		unlock, err := lockPath(t.Context(), gatewayDir(d.DataDir))
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
		del(t, d)
	}
	for _, tt := range []struct {
		name        string
		value, file string // before; the file is that of a call that was killed, "" for none
		call        func(*testing.T, delegation)
		want        string
		stays       bool // the file
	}{
		{"a call", "2", "", add, "2", false},
		{"a call, where it is off", "0", "", add, "0", false},
		{"a call after one that was killed", "0", "2", add, "2", false},
		{"DEL after one that was killed", "0", "2", del, "2", false},
		{"DEL beside a call at work", "0", "2", atWork, "0", true},
		{"set by the operator since", "1", "2", del, "1", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns, d := nstest.New(t), delegation{Bridge: "brx", DataDir: ownDir(t)}
			ns.Sh("ip link add brx type bridge; echo " + tt.value + " >/proc/sys/net/ipv6/conf/brx/accept_ra")
			file := filepath.Join(d.DataDir, "accept_ra", "brx")
			if tt.file != "" {
				if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.MkdirAll(gatewayDir(d.DataDir), 0o755),
					os.WriteFile(file, []byte(tt.file), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			ns.Do(func() { tt.call(t, d) })
			if now := strings.TrimSpace(ns.Sh("cat /proc/sys/net/ipv6/conf/brx/accept_ra")); now != tt.want {
				t.Errorf("accept_ra is %s, want %s", now, tt.want)
			}
			if _, err := os.Stat(file); (err == nil) != tt.stays {
				t.Errorf("the file: %v", err)
			}
		})
	}
}
