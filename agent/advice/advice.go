// Package advice tells what to do about errors of a host: a file system that is full or read-only, a missing right, a
// device or port that another program uses. One table holds all advice, by what was tried and what the kernel
// answered. The package is pure and does not know how the error came about; it never looks at an error's text.
package advice

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
)

// Area is what was tried when an error came: the same errno has another meaning for a file than for a device.
type Area string

// The areas.
const (
	Datapath   Area = "datapath"   // devices, routes, neighbours, sockets
	Firewall   Area = "firewall"   // rules
	Forwarding Area = "forwarding" // the switch below /proc/sys
	SubnetFile Area = "subnet_file"
	DataDir    Area = "data_dir"
	Listener   Area = "http.address"
)

const tunDevice = "/dev/net/tun"

// row holds the advice for some errors in an area, for one file if a path is named.
type row struct {
	area Area
	path string // of an *fs.PathError, "" for any or none
	errs []error
	todo string
}

// table returns the rows in order: the first row that fits counts.
func table() []row {
	noRight := []error{unix.EPERM, unix.EACCES}
	full := []error{unix.ENOSPC, unix.EDQUOT}
	const makeRoom = "free space on its file system; the file that was there stays intact"
	return []row{
		{Datapath, tunDevice, []error{unix.ENOENT, unix.ENODEV, unix.ENXIO},
			"load the kernel module tun (`modprobe tun`), in a container pass " + tunDevice + " in, or use another backend"},
		{Datapath, tunDevice, noRight,
			"let the agent's user read and write " + tunDevice + ", and the unit or container use the device (DeviceAllow=" +
				tunDevice + " rw)"},
		{Datapath, "", []error{backend.ErrForeignDevice}, "remove or rename that device; leno does not touch it"},
		{Datapath, "", []error{backend.ErrForeignRoute},
			"end the program that made that route (ip route show tells its device) and remove it, or give it a larger metric"},
		{Datapath, "", []error{backend.ErrDetour},
			"run that command and make it permanent, or let the program that made the rule leave these addresses out"},
		{Datapath, "", []error{backend.ErrNoSuchKind},
			"load the kernel module (`modprobe vxlan`) or build it, or use another backend for the network"},
		{Datapath, "", []error{backend.ErrPortOfDevice},
			"use another port for the network, or remove that device if nothing needs it " +
				"(ip -details link show); it is the kernel's, so there is no program to end"},
		{Datapath, "", []error{unix.EADDRINUSE},
			"end the program that has the UDP port (ss -ulpn), or use another port for the network"},
		{Datapath, "", []error{unix.EEXIST},
			"remove the device that has the VNI on that port (ip -details link show type vxlan), " +
				"or hand it over with `leno flannel adopt` if flannel created it, or use another vni for the network"},
		{Datapath, "", []error{unix.ENODEV},
			"bring the underlay's interface back, or let underlay in the configuration select another one; the agent follows " +
				"at once"},
		{Datapath, "", []error{backend.ErrUncarried}, "switch IPv6 on for this host " +
			"(sysctl net.ipv6.conf.all.disable_ipv6 and net.ipv6.conf.default.disable_ipv6 to 0), " +
			"or remove ipv6 from the network; until then containers here have no IPv6"},
		{Datapath, "", []error{backend.ErrNoHandshake},
			"accept the network's UDP port from and to that host, let both have the same preshared key " +
				"(psk_file), and see that its lease has the public key of its device (`leno doctor` there)"},
		{Datapath, "", noRight, "run the agent as root or with CAP_NET_ADMIN"},
		{Firewall, "", noRight, "run the agent as root or with CAP_NET_ADMIN, and CAP_NET_RAW for iptables-legacy"},
		{Forwarding, "", append(noRight, unix.EROFS),
			"let the agent write there (CAP_NET_ADMIN, /proc/sys/net not read-only), or set it to 1 in /etc/sysctl.d"},
		{SubnetFile, "", []error{unix.EROFS}, "make its file system writable, or set subnet_file to another place"},
		{SubnetFile, "", full, makeRoom},
		{SubnetFile, "", noRight, "let the agent's user write to its directory"},
		{DataDir, "", []error{unix.EROFS}, "make its file system writable, or set data_dir to another place"},
		{DataDir, "", full, makeRoom},
		{DataDir, "", noRight, "run the agent as root, or let its user own data_dir and all in it"},
		{Listener, "", []error{unix.EADDRINUSE},
			"stop the program that listens there (ss -ltnp), maybe another agent, or set http.address to another one"},
		{Listener, "", noRight, "let the agent's user listen there, or set http.address to another one"},
		{Listener, "", []error{unix.EADDRNOTAVAIL}, "set http.address to an address of this host"},
	}
}

// To returns what to do about an error, "" when nothing is known. An error that joins others may need several
// actions, which are separated by "; ".
func To(area Area, err error) string {
	var todo []string
	for _, single := range backend.Apart(err) {
		i := slices.IndexFunc(table(), func(r row) bool { return r.area == area && r.fits(single) })
		if i < 0 {
			continue
		}
		if do := table()[i].todo; !slices.Contains(todo, do) {
			todo = append(todo, do)
		}
	}
	return strings.Join(todo, "; ")
}

func (r row) fits(err error) bool {
	var about *fs.PathError
	if r.path != "" && (!errors.As(err, &about) || about.Path != r.path) {
		return false
	}
	return slices.ContainsFunc(r.errs, func(is error) bool { return errors.Is(err, is) })
}

// most is how many errors of one pass are reported: where a right is missing, a thousand routes fail alike.
const most = 3

// Reason returns an error and what to do about it, for health and the log. Of many errors it contains the first ones
// and the number of the others.
func Reason(area Area, err error) string {
	all := backend.Apart(err)
	var parts []string
	for _, single := range all[:min(len(all), most)] {
		parts = append(parts, strings.Join(strings.Fields(single.Error()), " "))
	}
	if more := len(all) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	if todo := To(area, err); todo != "" {
		parts = append(parts, todo)
	}
	return strings.Join(parts, "; ")
}

// Split separates the result of Reason into the error and the advice.
func Split(reason string) (saw, todo string) {
	saw = reason
	for again := true; again; {
		again = false
		for _, r := range table() {
			if before, ok := strings.CutSuffix(saw, "; "+r.todo); ok {
				saw, todo, again = before, strings.TrimSuffix(r.todo+"; "+todo, "; "), true
			}
		}
	}
	return saw, todo
}
