package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// HasFamily reports whether the kernel has a generic netlink family, such as "wireguard". The kernel loads a module
// that has it.
func HasFamily(name string) (bool, error) {
	request := nl.NewNetlinkRequest(nl.GENL_ID_CTRL, 0)
	request.AddData(genericHeader{nl.GENL_CTRL_CMD_GETFAMILY, nl.GENL_CTRL_VERSION})
	request.AddData(nl.NewRtAttr(nl.GENL_CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated(name)))
	_, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for netlink family %s: %w", name, err)
	}
	return true, nil
}

// genericHeader is a command, its version and two reserved bytes. nl.Genlmsg lacks the reserved bytes: what it sends in
// their place, it reads from the memory of something else, which another goroutine may be writing.
type genericHeader [4]byte

func (h genericHeader) Len() int          { return len(h) }
func (h genericHeader) Serialize() []byte { return h[:] }
