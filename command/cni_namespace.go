package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/command/cni"
)

// namespaceThere says whether there is a namespace at the path. A file that is left
// where one was mounted is none. What cannot be told is taken for one.
func namespaceThere(path string) bool {
	var kind unix.Statfs_t
	err := unix.Statfs(path, &kind)
	if path == "" || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false
	}
	return err != nil || kind.Type == unix.NSFS_MAGIC || kind.Type == unix.PROC_SUPER_MAGIC
}

// checkNamespace says that the container's namespace is there, and is not the host's:
// what is done in a container would be done to the host.
func checkNamespace(args *skel.CmdArgs) error {
	wrong := func(format string, a ...any) error {
		return types.NewError(types.ErrInvalidNetNS, fmt.Sprintf(format, a...), "")
	}
	var theirs unix.Stat_t
	if err := unix.Stat(args.Netns, &theirs); err != nil {
		return wrong("CNI_NETNS: there is no network namespace %s: %s", args.Netns, err)
	}
	if !namespaceThere(args.Netns) {
		return wrong("CNI_NETNS: %s is not a network namespace", args.Netns)
	}
	if isHostNamespace(args.Netns) && !overridesNetns(args) {
		return wrong("CNI_NETNS: %s is the host's own network namespace", args.Netns)
	}
	return nil
}

// isHostNamespace reports whether the path leads to the namespace of this program, which
// is the host's. The path of a container's can come to: /proc/PID/ns/net does when the
// container has ended and a process of the host has its PID.
func isHostNamespace(path string) bool {
	var theirs, ours unix.Stat_t
	err := errors.Join(unix.Stat(path, &theirs), unix.Stat("/proc/thread-self/ns/net", &ours))
	return err == nil && ours.Ino == theirs.Ino && ours.Dev == theirs.Dev
}

// overridesNetns reports whether the runtime wants the host's own namespace, which the
// specification's library lets it say as CNI_NETNS_OVERRIDE.
func overridesNetns(args *skel.CmdArgs) bool {
	return strings.EqualFold(args.NetnsOverride, "true") || args.NetnsOverride == "1"
}

// lockPause is how long a call sleeps between tries while another one is at work on
// the same container or bridge.
const lockPause = 20 * time.Millisecond

// lockPath keeps other calls off the container until unlock. The kernel unlocks
// when the program is killed.
func lockPath(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("lock %s, where another call is at work: %w", path, ctx.Err())
		case <-time.After(lockPause):
		}
	}
}

// inContainer finds the container's interface, nil when there is none of the name.
func inContainer(args *skel.CmdArgs, do func(*netlink.Handle, netlink.Link) error) error {
	ns, err := netns.GetFromPath(args.Netns)
	if err != nil {
		return fmt.Errorf("open %s: %w", args.Netns, err)
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("look into %s: %w", args.Netns, err)
	}
	defer inside.Close()
	link, err := inside.LinkByName(args.IfName)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return do(inside, nil)
	}
	if err != nil {
		return fmt.Errorf("look for %s in %s: %w", args.IfName, args.Netns, err)
	}
	return do(inside, link)
}

// checkInterface says that the container has no interface of the name yet.
func checkInterface(args *skel.CmdArgs) error {
	return inContainer(args, func(_ *netlink.Handle, link netlink.Link) error {
		if link == nil {
			return nil
		}
		return types.NewError(cni.CodeAttached, fmt.Sprintf("container %s has an interface %s that is not known to be of leno-cni: DEL it where it came from, or ask for another name", args.ContainerID, args.IfName), "")
	})
}

// removeInterface takes an interface away of which nothing but its name is known.
func removeInterface(args *skel.CmdArgs) error {
	return inContainer(args, func(inside *netlink.Handle, link netlink.Link) error {
		if link == nil {
			return nil
		}
		if err := inside.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove %s in %s: %w", args.IfName, args.Netns, err)
		}
		return nil
	})
}

// containerGone says whether neither the container's namespace is there nor the
// host's end of its interface, which ends with the namespace. A path that leads to the
// host's own namespace says nothing of the container's: then the interface decides.
func containerGone(r cni.Record) bool {
	there := namespaceThere(r.Netns)
	if r.Netns == "" || there && !isHostNamespace(r.Netns) {
		return false
	}
	if r.Link == "" {
		return !there
	}
	var missing netlink.LinkNotFoundError
	_, err := netlink.LinkByName(r.Link)
	return errors.As(err, &missing)
}
