package agent

import (
	"os"
	"strings"

	"github.com/lenonet/leno/api"
)

// kernelHere is which kernel this process runs on, and in which of its network
// namespaces: an id of the boot and the name of the namespace, "" for what cannot be
// read.
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

// SameKernel says whether this process sees the tables of the kernel that the agent
// sees, and if not why. known is false when one of both does not say.
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
