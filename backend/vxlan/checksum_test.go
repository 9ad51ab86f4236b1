package vxlan

import (
	"errors"
	"testing"
)

func TestChooseChecksum(t *testing.T) {
	for _, tt := range []struct {
		option, release string
		drivers         []string
		want            string
	}{
		{"auto", "6.18.4-1-amd64", []string{"virtio_net"}, "checksum offload on: no fault is known of Linux 6.18.4-1-amd64 with the driver virtio_net"},
		{"auto", "6.18.4", []string{"ixgbe", "mlx5_core"}, "checksum offload on: no fault is known of Linux 6.18.4 with the driver ixgbe, mlx5_core"},
		{"auto", "5.7.0", nil, "checksum offload on: no fault is known of Linux 5.7.0"},
		{"auto", "5.6.19-300.fc32.x86_64", []string{"virtio_net"}, "checksum offload off: Linux 5.6.19-300.fc32.x86_64 may write wrong checksums into masqueraded packets, as all before 5.7 do"},
		{"auto", "4.19.0-27-amd64", nil, "checksum offload off: Linux 4.19.0-27-amd64 may write wrong checksums into masqueraded packets, as all before 5.7 do"},
		{"auto", "5.10.0", []string{"e1000", "vmxnet3"}, "checksum offload off: the driver vmxnet3 may lose packets whose checksums it is left to compute"},
		{"auto", "5.7rc1", nil, "checksum offload on: no fault is known of Linux 5.7rc1"},
		{"auto", "strange", nil, "checksum offload on: no fault is known of Linux strange"},
		{"on", "4.19.0", []string{"vmxnet3"}, `checksum offload on: the network says checksum_offload = "on"`},
		{"off", "6.18.4", nil, `checksum offload off: the network says checksum_offload = "off"`},
	} {
		on, reason := chooseChecksum(tt.option, tt.release, tt.drivers)
		if got, err := checksumOutcome(tt.option, on, reason, nil); got != tt.want || err != nil {
			t.Errorf("%s on %s with %v:\n%s, %v, want\n%s", tt.option, tt.release, tt.drivers, got, err, tt.want)
		}
	}
}

func TestChecksumOutcomeWhereItCannotBeSwitched(t *testing.T) {
	cause := errors.New("ethtool leno-test: operation not supported")
	note, err := checksumOutcome(checksumAuto, true, "no fault is known of Linux 6.18", cause)
	if want := "checksum offload not changed, on was chosen: no fault is known of Linux 6.18: ethtool leno-test: operation not supported"; note != want || err != nil {
		t.Errorf("auto: %q, %v", note, err)
	}
	note, err = checksumOutcome(checksumOff, false, "", cause)
	const want = `switch checksum offload off: ethtool leno-test: operation not supported: allow it to the agent (CAP_NET_ADMIN), or set checksum_offload = "auto", which leaves it where it cannot be switched`
	if err == nil || err.Error() != want || !errors.Is(err, cause) || note != "checksum offload not changed: "+cause.Error() {
		t.Errorf("off: %q, %v", note, err)
	}
}
