package kernel

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Subscribe opens a netlink socket in the calling thread's network namespace that
// hears of groups. Those of NETLINK_NETFILTER want CAP_NET_ADMIN; without it the
// error is EPERM.
//
// The groups are joined after the socket was made: nl.Subscribe, when it is
// refused them, closes the descriptor and leaves an os.File behind that closes it
// once more when it is collected. By then the number is somebody else's, a
// connection or another netlink socket.
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
