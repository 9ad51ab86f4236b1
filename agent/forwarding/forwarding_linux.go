package forwarding

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/lenonet/leno/backend/kernel"
)

// Switch checks the kernel's switches. It remembers on which devices routers advertised, so that it notices when
// another program switched forwarding on and the routes are gone. The zero value is ready. It is safe for concurrent
// use: of several callers only one finds a switch off.
type Switch struct {
	// Path is the file that records what Ensure switches on, so that Restore of another process switches it off if this
	// one is killed. "" means none. The file must not outlive a boot. Restore leaves it to the caller.
	Path string

	mu         sync.Mutex
	advertised []string
	set        [][]string // the sysctls that Ensure has switched on
}

// Ensure checks the switches for the family of a subnet of this host, for packets that arrive by those of the devices
// that exist, in the calling thread's network namespace. If set is true, it switches on those that are off, unless that
// costs the host routes. It checks the bridges of the subnet's containers too, and leaves them to the programs that
// made them.
func (w *Switch) Ensure(subnet netip.Prefix, links []string, set bool) (s State, err error) {
	a := subnet.Addr()
	w.mu.Lock()
	defer w.mu.Unlock()
	links = slices.DeleteFunc(slices.Clone(links), func(link string) bool {
		_, err := kernel.Sysctl("ipv4", "conf", link, "forwarding")
		return err != nil
	})
	for _, parts := range switches(a, links) {
		value, err := kernel.Sysctl(parts...)
		if err != nil {
			return s, err
		}
		if a.Is6() {
			if s.Advertised, err = w.look(value != "0"); err != nil {
				return s, err
			}
		}
		if value != "0" {
			continue
		}
		name := kernel.SysctlName(parts...)
		if !set || len(s.Advertised) > 0 {
			s.Off = append(s.Off, name)
			continue
		}
		if err := w.record(parts); err != nil {
			return s, err
		}
		if _, err := kernel.SetSysctl("1", parts...); err != nil {
			return s, err
		}
		s.Set = append(s.Set, name)
	}
	bridges, err := closedBridges(subnet)
	s.Off = append(s.Off, bridges...)
	return s, err
}

// record remembers what Ensure is about to switch on.
func (w *Switch) record(parts []string) error {
	w.set = append(w.set, parts)
	if w.Path == "" {
		return nil
	}
	namespace, err := os.Readlink(ownNamespace)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(w.Path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%s/%s\n", namespace, strings.Join(parts, "/"))
	return errors.Join(err, file.Close())
}

// recorded returns what processes have switched on in this network namespace.
func (w *Switch) recorded() (set [][]string, err error) {
	data, err := os.ReadFile(w.Path)
	if w.Path == "" || errors.Is(err, os.ErrNotExist) {
		return w.set, nil
	}
	namespace, ownErr := os.Readlink(ownNamespace)
	for line := range strings.Lines(string(data)) {
		if parts := strings.Split(strings.TrimSuffix(line, "\n"), "/"); parts[0] == namespace {
			set = append(set, parts[1:])
		}
	}
	return set, errors.Join(err, ownErr)
}

// ownNamespace is a link whose target identifies the network namespace of the calling thread.
const ownNamespace = "/proc/thread-self/ns/net"

// Restore switches off what Ensure has switched on and no other program has changed since, in the calling thread's
// network namespace.
func (w *Switch) Restore() (err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	set, err := w.recorded()
	for _, parts := range set {
		if value, readErr := kernel.Sysctl(parts...); readErr != nil || value != "1" {
			continue // the device is gone, or another program changed the switch
		}
		_, setErr := kernel.SetSysctl("0", parts...)
		err = errors.Join(err, setErr)
	}
	w.set = nil
	return err
}

// closedBridges returns the switches of the devices that lead to the subnet's containers, if they are off. IPv6 has
// none that counts.
func closedBridges(subnet netip.Prefix) (off []string, err error) {
	if subnet.Addr().Is6() {
		return nil, nil
	}
	links, err := kernel.LinksInto(subnet)
	for _, link := range links {
		if value, err := kernel.Sysctl("ipv4", "conf", link, "forwarding"); err == nil && value == "0" {
			off = append(off, kernel.SysctlName("ipv4", "conf", link, "forwarding"))
		}
	}
	return off, err
}

// look returns the devices for State.Advertised. On a host that forwards, it includes those that had routes before,
// because these are gone.
func (w *Switch) look(forwards bool) ([]string, error) {
	found, err := kernel.Advertised()
	if err != nil {
		return nil, err
	}
	if forwards {
		found = append(found, w.advertised...)
		slices.Sort(found)
		found = slices.DeleteFunc(slices.Compact(found), func(link string) bool { return !kernel.IgnoresRouters(link) })
	}
	w.advertised = found
	return found, nil
}
