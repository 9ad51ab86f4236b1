package agent

import (
	"os"
	"strings"

	"github.com/lenonet/leno/api"
)

// kernelHere identifies the kernel that this process runs on and its network namespace. boot is the id of the boot,
// such as "7d4d8bd7-7d0a-4d2e-9c2f-0d9a1f0f5b3e", and namespace a name such as "net:[4026531840]". Each is "" if it
// cannot be read.
func kernelHere() (boot, namespace string) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil {
		boot = strings.TrimSpace(string(id))
	}
	namespace, err = os.Readlink("/proc/self/ns/net")
	if err != nil {
		namespace = ""
	}
	return boot, namespace
}

// SameKernel reports whether this process sees the same tables of the kernel as the agent, and if not, why. known is
// false if the kernel or the namespace of either is unknown.
func SameKernel(self api.Self) (same, known bool, reason string) {
	boot, namespace := kernelHere()
	switch {
	case boot == "" || namespace == "" || self.BootID == "" || self.NetworkNamespace == "":
		return false, false, ""
	case self.BootID != boot:
		return false, true, "the agent runs on another host"
	case self.NetworkNamespace != namespace:
		return false, true, "the agent runs in another network namespace of this host"
	}
	return true, true, ""
}
