package vxlan

import "testing"

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
		if got := checksumNote(chooseChecksum(tt.option, tt.release, tt.drivers)); got != tt.want {
			t.Errorf("%s on %s with %v:\n%s, want\n%s", tt.option, tt.release, tt.drivers, got, tt.want)
		}
	}
}
