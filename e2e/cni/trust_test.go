package cni

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// TestLiar checks that a program that listens at the agent's address while the agent is away, as
// any user on the host can, cannot make leno-cni put an address on the host.
func TestLiar(t *testing.T) {
	const nobody = 65534
	s := newSite(t, lab.Options{Hosts: 1, NoConsul: true})
	r := s.runtimes[0]
	must(t, os.WriteFile(r.subnetFile("default"), []byte("LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\nLENO_MTU=1450\nLENO_IPMASQ=true\n"), 0o644))
	evil := filepath.Join(r.dir, "run/evil")
	must(t, os.Mkdir(evil, 0o755))
	must(t, os.WriteFile(filepath.Join(evil, "e.env"), []byte("LENO_NETWORK=198.51.0.0/16\nLENO_SUBNET=198.51.100.1/24\nLENO_MTU=1450\n"), 0o644))
	for _, path := range []string{evil, filepath.Join(evil, "e.env")} {
		must(t, os.Chown(path, nobody, nobody))
	}

	var lies api.NetworkList
	for name, file := range map[string]string{"default": "/run/evil/e.env", "evil": "/run/evil/e.env", "link": "/run/evil/../evil/e.env"} {
		lies.Networks = append(lies.Networks, api.Network{Name: name, Local: &api.Local{
			State: "running", Subnets: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, MTU: 1450, SubnetFile: file,
		}})
	}
	r.serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Leno-Index", "1")
		_ = json.NewEncoder(w).Encode(lies)
	})

	c := s.added(t, r, conf("x", `,"network":"default"`))
	if !netip.MustParsePrefix("10.5.34.0/24").Contains(c.addrs()[0]) {
		t.Errorf("has %v", c.addrs())
	}
	// What runs in a container can lock the file of its namespace.
	namespace, err := os.Open(c.Path())
	must(t, err)
	defer namespace.Close()
	must(t, unix.Flock(int(namespace.Fd()), unix.LOCK_EX))
	must(t, c.del())
	must(t, c.add())

	for _, network := range []string{"evil", "link"} {
		fails(t, s.container(t, r, conf("x-"+network, fmt.Sprintf(`,"network":%q`, network))).add(), types.ErrIOFailure, "/run/evil belongs to user 65534")
	}
	// The agent's user may write there, as in the packages and the systemd unit.
	for _, path := range []string{filepath.Dir(r.subnetFile("x")), r.subnetFile("default")} {
		must(t, os.Chown(path, nobody, nobody))
	}
	must(t, s.container(t, r, conf("x", `,"network":"default"`)).add())
	on, err := r.Exec(s.ctx, "ip", "-4", "-o", "addr")
	must(t, err)
	if strings.Contains(on, "198.51.100.") {
		t.Errorf("on the host:\n%s", on)
	}
}
