package agent

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

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

// A process describes the process of an agent. It is safe for concurrent use.
type process struct {
	version string // of leno
	build   build
	host    string // the host name that the kernel has, "" if it cannot be read
	// kernel returns what kernelHere returned when it was first called: the result never changes.
	kernel func() (boot, namespace string)

	mu      sync.Mutex
	started time.Time // when the agent began to run, zero before that
}

func newProcess(version string) *process {
	host, _ := os.Hostname() // "" is good enough
	return &process{version: version, build: readBuild(), host: host, kernel: sync.OnceValues(kernelHere)}
}

// start records that the agent runs.
func (p *process) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = time.Now()
}

// startedAt returns when the agent began to run, or the zero time.
func (p *process) startedAt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.started
}

// build is the version control revision and the Go version that this program was built from, for example "3f2a9c1d0b7e"
// and "go1.25.1".
type build struct{ revision, toolchain string }

func readBuild() build {
	out := build{toolchain: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return out
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			out.revision = s.Value[:min(12, len(s.Value))]
		}
	}
	return out
}
