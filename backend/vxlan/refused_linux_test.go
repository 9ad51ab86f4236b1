package vxlan

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
)

// TestChecksumOffloadRefused checks that a host where the offload cannot be read, or cannot be
// switched, carries packets under "auto" and reports what it could not do. An explicit "on" or
// "off" gives an error, but the datapath is complete all the same.
func TestChecksumOffloadRefused(t *testing.T) {
	t.Parallel()
	told := func(string) (bool, error) { return false, os.NewSyscallError("ioctl", unix.EOPNOTSUPP) }
	switched := func(string, bool) error { return os.NewSyscallError("ioctl", unix.EPERM) }
	for _, tt := range []struct {
		name, option, release string
		tell                  func(string) (bool, error)
		note, err             string
	}{
		{"auto, not told", "auto", "", told, "not changed, on was chosen: no fault is known", ""},
		{"auto, not switched", "auto", "5.4.0", nil, "not changed, off was chosen: Linux 5.4.0", ""},
		{"off, not told", "off", "", told, "not changed: ioctl: operation not supported", `set checksum_offload = "auto"`},
		{"off, not switched", "off", "", nil, "not changed: ioctl: operation not permitted", "CAP_NET_ADMIN"},
		{"on, not told", "on", "", told, "not changed: ioctl: operation not supported", `set checksum_offload = "auto"`},
		{"on, nothing to do", "on", "", nil, `checksum offload on: the network says checksum_offload = "on"`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			b := h.open("test", "leno-test", fmt.Sprintf(`{"checksum_offload":%q}`, tt.option))
			b.checksum.release, b.checksum.set = tt.release, switched
			if tt.tell != nil {
				b.checksum.read = tt.tell
			}
			var r backend.Report
			var err error
			h.ns.Do(func() { r, err = b.Apply(t.Context(), h.state("eth0", "192.0.2.1")) })
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], tt.note) || r.Peers != 1 {
				t.Errorf("report %+v, want note %q", r, tt.note)
			}
			if got := h.ns.Sh("ip route show proto 108"); !strings.Contains(got, "10.5.2.0/24 via 10.5.2.0 dev leno-test onlink") {
				t.Errorf("no path to the peer:\n%s", got)
			}
		})
	}
}
