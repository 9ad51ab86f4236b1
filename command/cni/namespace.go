package cni

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespaceExists reports whether there is a namespace at the path. The file left after unmounting
// one does not count. If the check fails, it reports true.
func namespaceExists(path string) bool {
	var kind unix.Statfs_t
	err := unix.Statfs(path, &kind)
	if path == "" || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false
	}
	return err != nil || kind.Type == unix.NSFS_MAGIC || kind.Type == unix.PROC_SUPER_MAGIC
}

// checkNamespace returns an error if the container's namespace does not exist or is the host's. In
// the latter case the work meant for a container would be done on the host.
func checkNamespace(args *skel.CmdArgs) error {
	wrong := func(format string, a ...any) error {
		return types.NewError(types.ErrInvalidNetNS, fmt.Sprintf(format, a...), "")
	}
	var theirs unix.Stat_t
	if err := unix.Stat(args.Netns, &theirs); err != nil {
		return wrong("CNI_NETNS: there is no network namespace %s: %s", args.Netns, err)
	}
	if !namespaceExists(args.Netns) {
		return wrong("CNI_NETNS: %s is not a network namespace", args.Netns)
	}
	if isHostNamespace(args.Netns) && !overridesNetns(args) {
		return wrong("CNI_NETNS: %s is the host's own network namespace", args.Netns)
	}
	return nil
}

// isHostNamespace reports whether the path leads to the namespace of this program, which is the
// host's. A container's path can end up there: /proc/PID/ns/net does when the container has ended
// and a process of the host has its PID.
func isHostNamespace(path string) bool {
	var theirs, ours unix.Stat_t
	err := errors.Join(unix.Stat(path, &theirs), unix.Stat("/proc/thread-self/ns/net", &ours))
	return err == nil && ours.Ino == theirs.Ino && ours.Dev == theirs.Dev
}

// overridesNetns reports whether the runtime explicitly requests the host's own namespace, with
// CNI_NETNS_OVERRIDE of the specification's library.
func overridesNetns(args *skel.CmdArgs) bool {
	return strings.EqualFold(args.NetnsOverride, "true") || args.NetnsOverride == "1"
}

// namespaceID identifies a namespace as long as it exists: by the device and the inode of its file. It returns "" if
// there is none.
func namespaceID(path string) string {
	var file unix.Stat_t
	if !namespaceExists(path) || unix.Stat(path, &file) != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", file.Dev, file.Ino)
}

// namespaceOf returns the path of the namespace that has the recorded interface: the one that the runtime names, or
// else that of ADD. It returns "" if the interface is in neither, as when the container is gone.
func namespaceOf(r record, named string) (string, error) {
	link, err := findHostLink(r)
	if err != nil {
		return "", err
	}
	for _, path := range []string{named, r.Netns} {
		if !namespaceExists(path) || path != named && isHostNamespace(path) {
			continue
		}
		var found bool
		switch {
		case link != nil && link.Attrs().NetNsID >= 0:
			if found, err = isPeerIn(link, path); err != nil {
				return "", err
			}
		case r.NetnsID != "":
			found = namespaceID(path) == r.NetnsID
		default:
			found = path == named
		}
		if found {
			return path, nil
		}
	}
	return "", nil
}

// isPeerIn reports whether the other end of the host's link is in the namespace.
func isPeerIn(link netlink.Link, path string) (bool, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return false, fmt.Errorf("open %s: %w", path, err)
	}
	defer ns.Close()
	id, err := netlink.GetNetNsIdByFd(int(ns))
	if err != nil {
		return false, fmt.Errorf("look for the other end of %s in %s: %w", link.Attrs().Name, path, err)
	}
	return id == link.Attrs().NetNsID, nil
}

// inNamespace calls do with an interface of a namespace, or with nil if it has none of that name.
func inNamespace(path, ifName string, do func(*netlink.Handle, netlink.Link) error) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("look into %s: %w", path, err)
	}
	defer inside.Close()
	link, err := inside.LinkByName(ifName)
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return do(inside, nil)
	}
	if err != nil {
		return fmt.Errorf("look for %s in %s: %w", ifName, path, err)
	}
	return do(inside, link)
}

// hasInterface reports whether a namespace has an interface of that name.
func hasInterface(path, ifName string) (has bool, err error) {
	err = inNamespace(path, ifName, func(_ *netlink.Handle, link netlink.Link) error {
		has = link != nil
		return nil
	})
	return has, err
}

// checkInterface returns an error if the container already has an interface of that name.
func checkInterface(args *skel.CmdArgs) error {
	has, err := hasInterface(args.Netns, args.IfName)
	if err != nil || !has {
		return err
	}
	return errorf(codeAttached, "container %s has an interface %s that leno-cni did not create: "+
		"run DEL with the configuration that created it, or use another name", args.ContainerID, args.IfName)
}

// removeInterface removes an interface of which only the name is known.
func removeInterface(path, ifName string) error {
	return inNamespace(path, ifName, func(inside *netlink.Handle, link netlink.Link) error {
		if link == nil {
			return nil
		}
		if err := inside.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove %s in %s: %w", ifName, path, err)
		}
		return nil
	})
}

// isContainerGone reports whether both the container's namespace and the host's end of its interface
// are gone; the interface ends with the namespace. A path that leads to the host's own namespace
// proves nothing about the container's: then the interface decides.
func isContainerGone(r record) bool {
	exists := namespaceExists(r.Netns)
	if r.Netns == "" || exists && !isHostNamespace(r.Netns) {
		return false
	}
	if r.Link == "" {
		return !exists
	}
	link, err := findDevice(r.Link)
	return err == nil && link == nil
}
