package host

import (
	"os"
	"strings"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
)

// dropped runs an agent without a configuration, and commands while the host drops all packets of TCP on its loopback
// device, as a host with a full table of connections does.
const dropped = `
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
"$1" agent -dev >/run/agent.log 2>&1 &
agent=$!
trap 'kill $agent; wait $agent; ls /run/leno/leno.sock 2>&1 | sed "s/^/after the end: /"' EXIT
until test -S /run/leno/leno.sock; do
  kill -0 $agent || { cat /run/agent.log; exit 1; }
  sleep 0.1
done
nft 'add table inet drops; add chain inet drops output { type filter hook output priority 0; }'
nft add rule inet drops output oif lo meta l4proto tcp drop
stat -c 'mode %a' /run/leno/leno.sock
"$1" status -format=json | grep -c '"node_name"' | sed 's/^/by default: /'
"$1" status -address=127.0.0.1:5366 2>&1 | sed 's/^/over TCP: /'
unshare --net sh -c 'ip link set lo up; "$1" status 2>&1' sh "$1" | sed 's/^/in another namespace: /'
`

// TestSocketWithoutLoopback: commands use the agent's socket, which needs no packets, but not that of an agent in another
// network namespace. A command that cannot connect says so after a few seconds.
func TestSocketWithoutLoopback(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 1})
	out, err := w.Hosts[0].Exec(w.Ctx, "unshare", "--mount", "sh", "-c", dropped, "sh", os.Getenv("LENO_TEST_LENO"))
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{
		"mode 660",
		"by default: 1",
		"over TCP: Error: connecting to the agent at 127.0.0.1:5366 took longer than 5s: ",
		"in another namespace: Error: no agent answers at 127.0.0.1:5366: ",
		"after the end: ls: cannot access '/run/leno/leno.sock'",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q: %s", want, out)
		}
	}
}
