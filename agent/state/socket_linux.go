package state

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of linux/unix_diag.h and linux/sock_diag.h.
const (
	sockDiagByFamily = 20
	unixDiagName     = 0 // attributes
	unixDiagUID      = 7
	unixShowName     = 1 << 0 // what to show
	unixShowUID      = 1 << 6
	unixMessageSize  = 16 // struct unix_diag_msg: family, type, state, padding, inode, cookie

	stateClose, stateListen = 7, 10 // of TCP, which unix sockets use, too
)

// unixRequest is struct unix_diag_req.
type unixRequest struct{}

func (unixRequest) Len() int { return 24 }

func (unixRequest) Serialize() []byte {
	out := make([]byte, 24)
	out[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(out[4:], 1<<stateClose|1<<stateListen)
	binary.NativeEndian.PutUint32(out[12:], unixShowName|unixShowUID)
	return out
}

// socketOwner returns the user whose stream socket is bound to an abstract name, such as "@leno-agent", in the calling
// thread's network namespace. The error wraps fs.ErrNotExist if there is none, and unix.ENOENT if the kernel does not
// show sockets or their users.
func socketOwner(name string) (uid uint32, err error) {
	request := nl.NewNetlinkRequest(sockDiagByFamily, unix.NLM_F_DUMP)
	request.AddData(unixRequest{})
	messages, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
	if err != nil {
		return 0, fmt.Errorf("list unix sockets: %w", err)
	}
	name = strings.Replace(name, "@", "\x00", 1)
	for _, m := range messages {
		if len(m) < unixMessageSize || m[1] != unix.SOCK_STREAM {
			continue
		}
		attributes, err := nl.ParseRouteAttr(m[unixMessageSize:])
		if err != nil {
			return 0, fmt.Errorf("list unix sockets: %w", err)
		}
		var bound string
		var user []byte
		for _, a := range attributes {
			switch a.Attr.Type {
			case unixDiagName:
				bound = string(a.Value)
			case unixDiagUID:
				user = a.Value
			}
		}
		switch {
		case bound != name:
		case len(user) < 4:
			return 0, fmt.Errorf("the user of a unix socket: %w", unix.ENOENT)
		default:
			return binary.NativeEndian.Uint32(user), nil
		}
	}
	return 0, fmt.Errorf("unix socket %q: %w", name, fs.ErrNotExist)
}
