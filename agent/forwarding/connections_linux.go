package forwarding

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/lenonet/leno/backend/kernel"
)

// Connections is how many connections the kernel tracks, and at most; zero if it tracks none.
type Connections struct{ Count, Max int }

// Problem returns what is wrong and what to do about it, "" if the table has room.
func (c Connections) Problem() (saw, do string) {
	if c.Max == 0 || c.Count < c.Max-c.Max/100 { // while it is full, entries come and go
		return "", ""
	}
	return fmt.Sprintf("the kernel's table of connections is full, %d of %d: it drops the packets of new ones",
			c.Count, c.Max),
		fmt.Sprintf("`sysctl -w net.netfilter.nf_conntrack_max=%d`, and see with `conntrack -L` who fills it", 4*c.Max)
}

// ReadConnections returns how full the kernel's table of connections is.
func ReadConnections() Connections {
	number := func(name string) int {
		text, err := kernel.Sysctl("netfilter", name)
		if err != nil {
			return 0
		}
		n, _ := strconv.Atoi(strings.TrimSpace(text))
		return n
	}
	return Connections{Count: number("nf_conntrack_count"), Max: number("nf_conntrack_max")}
}
