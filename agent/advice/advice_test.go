package advice

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
)

func about(path string, err error) error { return &fs.PathError{Op: "open", Path: path, Err: err} }

func TestTo(t *testing.T) {
	for _, tt := range []struct {
		name string
		area Area
		err  error
		want []string // words, none for no advice
	}{
		{"nothing known", Datapath, errors.New("permission denied"), nil},
		{"another area", SubnetFile, unix.EADDRINUSE, nil},
		{"no tun", Datapath, fmt.Errorf("attach: %w", about(tunDevice, unix.ENOENT)), []string{"kernel module tun"}},
		{"no driver behind the node", Datapath, about(tunDevice, unix.ENODEV), []string{"kernel module tun"}},
		{"tun not permitted", Datapath, about(tunDevice, unix.EPERM), []string{"DeviceAllow"}},
		{"tun not readable", Datapath, about(tunDevice, unix.EACCES), []string{"DeviceAllow"}},
		{"another file is missing", Datapath, about("/proc/x", unix.ENOENT), nil},
		{"no right", Datapath, fmt.Errorf("create link: %w", unix.EPERM), []string{"CAP_NET_ADMIN"}},
		{"foreign device", Datapath, fmt.Errorf("link leno-x: %w", backend.ErrForeignDevice), []string{"rename"}},
		{"no such kind", Datapath, fmt.Errorf("%w: %w", unix.EOPNOTSUPP, backend.ErrNoSuchKind), []string{"kernel module"}},
		{"EOPNOTSUPP alone is of many things", Datapath, unix.EOPNOTSUPP, nil},
		{"port", Datapath, unix.EADDRINUSE, []string{"ss -ulpn"}},
		{"port of a device", Datapath, fmt.Errorf("%w x: %w", backend.ErrPortOfDevice, unix.EADDRINUSE), []string{"another port", "remove that device", "no program to end"}},
		{"vni", Datapath, fmt.Errorf("create link: %w", unix.EEXIST), []string{"VNI"}},
		{"route", Datapath, fmt.Errorf("put route: %w: %w", unix.EEXIST, backend.ErrForeignRoute), []string{"metric"}},
		{"rules", Firewall, unix.EPERM, []string{"CAP_NET_RAW"}},
		{"read-only", SubnetFile, about("/run/leno/x", unix.EROFS), []string{"subnet_file"}},
		{"full", SubnetFile, about("/run/leno/x", unix.ENOSPC), []string{"free space"}},
		{"quota", DataDir, about("/var/lib/leno/x", unix.EDQUOT), []string{"free space"}},
		{"owner", DataDir, about("/var/lib/leno/x", unix.EACCES), []string{"own data_dir"}},
		{"sysctl", Forwarding, about("/proc/sys/net/ipv4/ip_forward", unix.EROFS), []string{"sysctl.d"}},
		{"listener", Listener, unix.EADDRINUSE, []string{"ss -ltnp"}},
		{"two at once", Datapath, errors.Join(unix.EPERM, fmt.Errorf("port: %w", unix.EADDRINUSE), unix.EPERM), []string{"CAP_NET_ADMIN", "; ", "ss -ulpn"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := To(tt.area, tt.err)
			if (got == "") != (len(tt.want) == 0) {
				t.Fatalf("%q", got)
			}
			for _, words := range tt.want {
				if !strings.Contains(got, words) {
					t.Errorf("%q lacks %q", got, words)
				}
			}
		})
	}
	if got := strings.Count(To(Datapath, errors.Join(unix.EPERM, unix.EACCES)), "CAP_NET_ADMIN"); got != 1 {
		t.Errorf("the same advice %d times", got)
	}
}

// TestEveryRowCounts checks that no row is hidden by one above it, and that every area has one.
func TestEveryRowCounts(t *testing.T) {
	areas := map[Area]bool{}
	for _, r := range table() {
		areas[r.area] = true
		for _, is := range r.errs {
			err := is
			if r.path != "" {
				err = about(r.path, is)
			}
			if got := To(r.area, err); got != r.todo {
				t.Errorf("%s, %v: %q, the row says %q", r.area, err, got, r.todo)
			}
		}
	}
	for _, area := range []Area{Datapath, Firewall, Forwarding, SubnetFile, DataDir, Listener} {
		if !areas[area] {
			t.Errorf("nothing is known of %s", area)
		}
	}
}

// TestReasonIsBounded tests a missing right, which makes every route fail.
func TestReasonIsBounded(t *testing.T) {
	var errs []error
	for i := range 1000 {
		errs = append(errs, fmt.Errorf("put route 10.5.%d.0/24: %w", i, unix.EPERM))
	}
	got := Reason(Datapath, errors.Join(nil, errors.Join(errs...), nil))
	want := "put route 10.5.0.0/24: operation not permitted; put route 10.5.1.0/24: operation not permitted; " +
		"put route 10.5.2.0/24: operation not permitted; and 997 more; run the agent as root or with CAP_NET_ADMIN"
	if got != want {
		t.Errorf("%q", got)
	}
	if got := Reason(DataDir, errors.New("one\nline")); got != "one line" {
		t.Errorf("%q", got)
	}
}

// TestSplit checks that Split reverses Reason.
func TestSplit(t *testing.T) {
	for _, err := range []error{
		unix.EPERM, errors.New("x; y"), errors.Join(unix.EPERM, &fs.PathError{Op: "open", Path: tunDevice, Err: unix.ENOENT}, unix.EIO),
	} {
		saw, todo := Split(Reason(Datapath, err))
		if todo != To(Datapath, err) || strings.Contains(saw, "CAP_NET_ADMIN") || !strings.HasPrefix(Reason(Datapath, err), saw) || saw == "" {
			t.Errorf("%v: %q, %q", err, saw, todo)
		}
	}
}
