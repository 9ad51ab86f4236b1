package kernel

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Subscribe opens a netlink socket in the calling thread's network namespace and joins the groups.
// The groups of NETLINK_NETFILTER need CAP_NET_ADMIN; without it the error is EPERM.
//
// The groups are joined after the socket is created. When nl.Subscribe itself is refused the
// groups, it closes the descriptor and leaves an os.File behind that closes it a second time when
// it is garbage collected. By then the number may belong to a connection or another netlink socket.
func Subscribe(protocol int, groups ...uint) (*nl.NetlinkSocket, error) {
	socket, err := nl.Subscribe(protocol)
	if err != nil {
		return nil, err
	}
	for _, group := range groups {
		if err := unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(group)); err != nil {
			socket.Close()
			return nil, err
		}
	}
	return socket, nil
}
