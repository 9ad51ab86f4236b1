package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/internal/testkit/programs"
)

// TestHangingPlugin: a call does not wait for what a plugin leaves running, and stops a plugin that does not end.
func TestHangingPlugin(t *testing.T) {
	const long = 10 * time.Minute
	for _, tt := range []struct {
		name, end string // what the plugin does after it has started a child
		limit     time.Duration
		want      string // error, "" for none
	}{
		{"the plugin does not end", "wait", time.Second, "plugin slow: it was stopped: it did not end within 30s"},
		{"the plugin ends", "", long, ""},
		{"the plugin fails", "echo broken >&2; exit 1", long, `plugin slow: it ended with "broken\n": exit status 1`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // it waits
			dir := t.TempDir()
			// The child keeps the plugin's output open until it reads a line.
			const script = "#!/bin/sh\nexec 3<>%[1]s/pipe\nread line <&3 &\n%[2]s\n"
			pipe := filepath.Join(dir, "pipe")
			err := errors.Join(syscall.Mkfifo(pipe, 0o600),
				programs.Write(filepath.Join(dir, "slow"), fmt.Appendf(nil, script, dir, tt.end)))
			if err != nil {
				t.Fatal(err)
			}
			ending, err := os.OpenFile(pipe, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer ending.Close()
			endChild := func() { _, _ = ending.WriteString("\n") }
			defer endChild()
			waited := time.AfterFunc(time.Minute, endChild)
			ctx, cancel := context.WithTimeoutCause(t.Context(), tt.limit, errUndoTime)
			defer cancel()
			err = callPlugin(ctx, delegation{Plugin: "slow"}, []byte(`{}`), &invoke.Args{Command: "DEL", Path: dir})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || err.Error() != tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if !waited.Stop() {
				t.Error("the call waited for the plugin's child")
			}
		})
	}
}

// TestOldPlugin: STATUS reports a plugin that does not support the configuration's version, and GC does not call it.
func TestOldPlugin(t *testing.T) {
	const script = `#!/bin/sh
echo ${0##*/} $CNI_COMMAND >>%s/calls
[ $CNI_COMMAND = VERSION ] && echo '{"cniVersion": "1.0.0", "supportedVersions": [%s]}' && exit
%s
`
	const older = `"0.4.0", "1.0.0"`
	const refused = `echo '{"code": 3, "msg": "missing containerID"}'; exit 1`
	for _, tt := range []struct {
		name, bridge, hostLocal string // versions
		status                  string // error of STATUS, "" for none
		statusCalls, gcCalls    string
	}{
		{"current", older + `, "1.1.0"`, older + `, "1.1.0"`, "",
			"bridge VERSION, host-local VERSION, bridge STATUS", "bridge VERSION, bridge GC"},
		{"both older", older, older,
			"plugin bridge does not support cniVersion 1.1.0, so ADD would fail: install a newer one " +
				"(reference plugins 1.6.0 or later), or set cniVersion to one of 0.4.0, 1.0.0", "bridge VERSION", "bridge VERSION"},
		{"older host-local", older + `, "1.1.0"`, older, "plugin host-local does not support cniVersion 1.1.0",
			"bridge VERSION, host-local VERSION", "bridge VERSION, bridge GC"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, c := cniOf(t, newFakeAgent(t), "")
			writeUsual(t, p, "default", "LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\nLENO_MTU=1450\n")
			dir, dataDir := t.TempDir(), ownDir(t)
			for name, versions := range map[string]string{"bridge": tt.bridge, "host-local": tt.hostLocal} {
				more := ":"
				if versions == older {
					more = refused
				}
				if err := programs.Write(filepath.Join(dir, name), fmt.Appendf(nil, script, dir, versions, more)); err != nil {
					t.Fatal(err)
				}
			}
			calls := func() string {
				path := filepath.Join(dir, "calls")
				text, err := os.ReadFile(path)
				if err := errors.Join(err, os.Remove(path)); err != nil {
					t.Fatal(err)
				}
				return strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", ", ")
			}
			conf := func(more string) *skel.CmdArgs {
				return &skel.CmdArgs{Path: dir, StdinData: fmt.Appendf(nil, `{%s,"network":"default","dataDir":%q,"address":%q%s}`,
					head, dataDir, c.Address, more)}
			}
			if err := p.status(t.Context(), conf("")); tt.status != "" {
				isCNI(t, err, codeNotAvailable, tt.status)
			} else if err != nil {
				t.Errorf("STATUS: %v", err)
			}
			if got := calls(); got != tt.statusCalls {
				t.Errorf("STATUS called %s, want %s", got, tt.statusCalls)
			}
			r := newRecord("leno", types.GCAttachment{ContainerID: "c1", IfName: "eth0"}, "/run/netns/c1",
				delegation{Plugin: bridgePlugin, Network: "default", Config: []byte("{}")})
			r.Done = true
			if err := (records{dataDir: dataDir, name: "leno"}).write(r); err != nil {
				t.Fatal(err)
			}
			valid := `,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`
			if err := p.gc(t.Context(), conf(valid)); err != nil {
				t.Errorf("GC: %v", err)
			}
			if got := calls(); got != tt.gcCalls {
				t.Errorf("GC called %s, want %s", got, tt.gcCalls)
			}
		})
	}
}
