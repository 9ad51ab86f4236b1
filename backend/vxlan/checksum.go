package vxlan

import (
	"fmt"
	"slices"
	"strings"
)

// chooseChecksum reports whether the device may leave the checksums of packets to a later stage,
// and why. release is the kernel's release, such as "6.18.4-1-amd64", and drivers are those of the
// network cards below. Pure.
//
// "auto" is on, because off also disables segmentation offload on the device, except where a fault
// is known:
//
//   - Linux before 5.7 writes wrong checksums into VXLAN packets that it masquerades
//     (torvalds/linux ea64d8d6c675; flannel #1279; calico #3145, which draws the same line in
//     felix #2811). Some distributions have backported the fix to older kernels; there "on" is
//     right.
//   - vmxnet3 offers to compute checksums inside tunnels since Linux 5.8, and on many versions of
//     ESXi, on any port or on some, loses those packets (calico #4727,
//     openshift/machine-config-operator #2734, flannel #2388). Before 5.8 the driver made no such
//     offer, so nothing is lost by doing without it.
func chooseChecksum(option, release string, drivers []string) (on bool, reason string) {
	if option != checksumAuto {
		return option == checksumOn, fmt.Sprintf("the network says checksum_offload = %q", option)
	}
	if before(release, 5, 7) {
		return false, fmt.Sprintf("Linux %s may write wrong checksums into masqueraded packets, as all before 5.7 do",
			release)
	}
	if slices.Contains(drivers, "vmxnet3") {
		return false, "the driver vmxnet3 may lose packets whose checksums it is left to compute"
	}
	if len(drivers) == 0 {
		return true, "no fault is known of Linux " + release
	}
	return true, fmt.Sprintf("no fault is known of Linux %s with the driver %s", release, strings.Join(drivers, ", "))
}

// before reports whether a kernel release is older than a version. It returns false for a release
// it cannot parse.
func before(release string, major, minor int) bool {
	var a, b int
	if _, err := fmt.Sscanf(release, "%d.%d", &a, &b); err != nil {
		return false
	}
	return a < major || a == major && b < minor
}

// checksumOutcome describes the choice, and returns an error if it could not be applied. With
// "auto" it never returns an error: a kernel or sandbox that does not allow the offload to be read
// or switched still carries packets, and the note says so. Pure.
func checksumOutcome(option string, on bool, reason string, err error) (note string, _ error) {
	chosen := map[bool]string{true: "on", false: "off"}[on]
	switch {
	case err == nil:
		return fmt.Sprintf("checksum offload %s: %s", chosen, reason), nil
	case option == checksumAuto:
		return fmt.Sprintf("checksum offload not changed, %s was chosen: %s: %v", chosen, reason, err), nil
	}
	return fmt.Sprintf("checksum offload not changed: %v", err),
		fmt.Errorf(`switch checksum offload %s: %w: allow it to the agent (CAP_NET_ADMIN), or set `+
			`checksum_offload = "auto", which leaves it where it cannot be switched`, chosen, err)
}
