package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/e2e/lab"
)

// TestErrors checks that a failed call prints the specification's error code and a message as JSON
// and nothing else on standard output. There is no agent.
func TestErrors(t *testing.T) {
	s := newSite(t, lab.Options{Hosts: 1, NoConsul: true})
	r := s.runtimes[0]
	there := s.container(t, r, conf("x", "")).Path()
	must(t, os.WriteFile(r.subnetFile("default"), []byte("LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\nLENO_MTU=1450\nLENO_IPMASQ=true\n"), 0o644))
	must(t, os.WriteFile(r.subnetFile("broken"), []byte("LENO_SUBNET=10.5.34.0/24\n"), 0o644))
	noIPAM, empty := filepath.Join(r.Dir, "bridge-alone"), filepath.Join(r.Dir, "empty")
	for _, dir := range []string{noIPAM, empty} {
		must(t, os.Mkdir(dir, 0o755))
	}
	must(t, os.Symlink(filepath.Join(plugins, "bridge"), filepath.Join(noIPAM, "bridge")))

	const head = `"cniVersion":"1.1.0","name":"net","type":"leno-cni"`
	const fine = `{` + head + `,"network":"default"}`
	const versions = `plugin supports ["0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]`
	const other = `{` + head + `,"network":"default","delegate":{"bridge":"other"}}`
	for _, tt := range []struct {
		name  string
		env   string // added to the environment of a call that would succeed; "X=" removes X
		stdin string
		code  uint // 0 for success
		want  string
	}{
		{"version", "CNI_COMMAND=VERSION", "", 0, `"supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]`},
		{"version with rubbish", "CNI_COMMAND=VERSION CNI_NETNS=", "{", 0, `"cniVersion"`},
		{"unknown command", "CNI_COMMAND=MOVE", fine, types.ErrInvalidEnvironmentVariables, "MOVE"},
		{"command in lower case", "CNI_COMMAND=add", fine, types.ErrInvalidEnvironmentVariables, "add"},
		{"no container", "CNI_CONTAINERID=", fine, types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID"},
		{"bad container", "CNI_CONTAINERID=../x", fine, types.ErrInvalidEnvironmentVariables, "containerID"},
		{"no interface", "CNI_IFNAME=", fine, types.ErrInvalidEnvironmentVariables, "CNI_IFNAME"},
		{"bad interface", "CNI_IFNAME=a/b", fine, types.ErrInvalidEnvironmentVariables, "interface name"},
		{"long interface", "CNI_IFNAME=a-name-of-16-byt", fine, types.ErrInvalidEnvironmentVariables, "interface name"},
		{"no namespace", "CNI_NETNS=", fine, types.ErrInvalidEnvironmentVariables, "CNI_NETNS"},
		{"missing namespace", "CNI_NETNS=/run/netns/none", fine, types.ErrInvalidNetNS, "no network namespace /run/netns/none"},
		{"a file for a namespace", "CNI_NETNS=/etc/hostname", fine, types.ErrInvalidNetNS, "is not a network namespace"},
		{"the host's namespace", "CNI_NETNS=/proc/self/ns/net", fine, types.ErrInvalidNetNS, "the host's own"},
		{"DEL of the host's namespace", "CNI_COMMAND=DEL CNI_NETNS=/proc/self/ns/net", fine, 0, ""},
		{"CHECK of the host's namespace", "CNI_COMMAND=CHECK CNI_NETNS=/proc/self/ns/net", fine, types.ErrInvalidNetNS, "the host's own"},
		{"no path", "CNI_PATH=", fine, types.ErrInvalidEnvironmentVariables, "CNI_PATH"},
		{"no configuration", "", "", types.ErrDecodingFailure, "JSON"},
		{"half a configuration", "", `{` + head, types.ErrDecodingFailure, "JSON"},
		{"null", "", `null`, types.ErrInvalidNetworkConfig, "name"},
		{"no name", "", `{"cniVersion":"1.1.0","type":"leno-cni"}`, types.ErrInvalidNetworkConfig, "name"},
		{"bad name", "", `{"cniVersion":"1.1.0","name":"a/b","type":"leno-cni"}`, types.ErrInvalidNetworkConfig, "name"},
		{"newer version", "", strings.Replace(fine, "1.1.0", "2.0.0", 1), types.ErrIncompatibleCNIVersion, "incompatible"},
		{"older version", "", strings.Replace(fine, "1.1.0", "0.2.0", 1), types.ErrIncompatibleCNIVersion, versions},
		{"no version", "", strings.Replace(fine, `"cniVersion":"1.1.0",`, "", 1), types.ErrIncompatibleCNIVersion, versions},
		{"version 7", "", strings.Replace(fine, `"1.1.0"`, "7", 1), types.ErrDecodingFailure, "version"},
		{"CHECK of a version without", "CNI_COMMAND=CHECK", strings.Replace(fine, "1.1.0", "0.3.1", 1), types.ErrIncompatibleCNIVersion, "CHECK"},
		{"GC of a version without", "CNI_COMMAND=GC", strings.Replace(fine, "1.1.0", "1.0.0", 1), types.ErrIncompatibleCNIVersion, "GC"},
		{"STATUS of a version without", "CNI_COMMAND=STATUS", strings.Replace(fine, "1.1.0", "1.0.0", 1), types.ErrIncompatibleCNIVersion, "STATUS"},
		{"unknown key", "", `{` + head + `,"nework":"default"}`, types.ErrUnsupportedField, `nework: "default"`},
		{"conflict", "", `{` + head + `,"subnetFile":"/x","address":"127.0.0.1:1"}`, types.ErrInvalidNetworkConfig, "cannot be used together"},
		{"too large an MTU", "", `{` + head + `,"network":"default","delegate":{"mtu":9000}}`, types.ErrInvalidNetworkConfig, "1450"},
		{"several networks", "", `{` + head + `}`, types.ErrInvalidNetworkConfig, "broken.env, /run/leno/default.env"},
		{"broken subnet file", "", `{` + head + `,"network":"broken"}`, types.ErrIOFailure, `/run/leno/broken.env: LENO_SUBNET="10.5.34.0/24"`},
		{"no subnet file", "", `{` + head + `,"network":"none","wait":"0s"}`, types.ErrTryAgainLater, "/run/leno/none.env"},
		{"no named subnet file", "", `{` + head + `,"subnetFile":"/run/none","wait":"0s"}`, types.ErrTryAgainLater, "/run/none"},
		{"STATUS of none", "CNI_COMMAND=STATUS", `{` + head + `,"network":"none"}`, 50, "/run/leno/none.env"},
		{"STATUS", "CNI_COMMAND=STATUS", fine, 0, ""},
		{"no bridge", "CNI_PATH=" + empty, fine, 100, "plugin bridge is not in CNI_PATH (" + empty + ")"},
		{"no host-local", "CNI_PATH=" + noIPAM, fine, 100, "plugin host-local is not in CNI_PATH (" + noIPAM + ")"},
		{"STATUS without host-local", "CNI_COMMAND=STATUS CNI_PATH=" + noIPAM, fine, 50, "plugin host-local is not in CNI_PATH"},
		{"an address of another subnet", "CNI_ARGS=IgnoreUnknown=true;IP=10.5.35.7", fine, types.ErrInvalidNetworkConfig, "10.5.35.7"},
		{"the gateway's address", "CNI_ARGS=IgnoreUnknown=true;IP=10.5.34.1", fine, types.ErrInvalidNetworkConfig, "gateway"},
		{"CHECK of an unknown container", "CNI_COMMAND=CHECK", fine, types.ErrUnknownContainer, "ADD it"},
		{"DEL of an unknown container", "CNI_COMMAND=DEL", fine, 0, ""},
		{"DEL without a namespace", "CNI_COMMAND=DEL CNI_NETNS=", fine, 0, ""},
		{"DEL of a namespace that is gone", "CNI_COMMAND=DEL CNI_NETNS=/run/netns/none", fine, 0, ""},
		{"DEL with another configuration", "CNI_COMMAND=DEL", `{` + head + `,"nework":"x","wait":7}`, 0, ""},
		{"GC without a list", "CNI_COMMAND=GC", fine, types.ErrInvalidNetworkConfig, "cni.dev/valid-attachments is missing"},
		{"GC of nothing", "CNI_COMMAND=GC", strings.Replace(fine, "{", `{"cni.dev/valid-attachments":[],`, 1), 0, ""},
		{"an interface of another program", "CNI_IFNAME=lo", fine, 102, "lo that leno-cni did not create"},
		{"fine", "", fine, 0, `"10.5.34.`},
		{"DEL with arguments that bridge rejects", "CNI_COMMAND=DEL CNI_ARGS=K=V", fine, 0, ""},
		{"ADD with arguments that bridge rejects", "CNI_ARGS=K=V", fine, types.ErrInternal, "K"},
		{"a VLAN that bridge refuses", "", strings.Replace(fine, "}", `,"delegate":{"vlan":5000}}`, 1), types.ErrInternal, "5000"},
		{"ADD without the VLAN", "", fine, 0, `"10.5.34.`},
		{"DEL after both", "CNI_COMMAND=DEL", fine, 0, ""},
		// A bridge that never had an address and has no port any more.
		{"failed before", "CNI_PATH=" + noIPAM, other, 100, "host-local"},
		{"fine after that", "", other, 0, `"10.5.34.`},
		{"ended", "CNI_COMMAND=DEL", other, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			env := map[string]string{"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": there, "CNI_IFNAME": "eth0", "CNI_PATH": r.path}
			for pair := range strings.FieldsSeq(tt.env) {
				key, value, _ := strings.Cut(pair, "=")
				env[key] = value
			}
			command := []string{"env"}
			for key, value := range env {
				command = append(command, key+"="+value)
			}
			stdin := filepath.Join(t.TempDir(), "stdin")
			must(t, os.WriteFile(stdin, []byte(tt.stdin), 0o644))
			out, err := r.Exec(s.ctx, r.machine(stdin, append(command, filepath.Join(r.path, "leno-cni"))...)...)
			if tt.code == 0 {
				if err != nil || !strings.Contains(strings.ReplaceAll(out, `": `, `":`), tt.want) {
					t.Errorf("%v: %s", err, out)
				}
				return
			}
			var got struct {
				CNIVersion string `json:"cniVersion"`
				Code       uint
				Msg        string
				Details    string
			}
			dec := json.NewDecoder(strings.NewReader(out))
			dec.DisallowUnknownFields()
			if err := dec.Decode(&got); err != nil || dec.More() {
				t.Fatalf("%v on standard output: %s", err, out)
			}
			if err == nil || got.Code != tt.code || !strings.Contains(got.Msg+"; "+got.Details, tt.want) || got.CNIVersion == "" {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	// No failed call left an address or a record.
	var left bytes.Buffer
	for _, dir := range []string{"attachments", "addresses"} {
		out, err := exec.Command("find", filepath.Join(r.dir, stateDir, dir), "-type", "f", "!", "-name", "lock", "!", "-name", "last_*").CombinedOutput()
		must(t, err)
		fmt.Fprintf(&left, "%s", out)
	}
	if left.Len() > 0 {
		t.Errorf("left behind:\n%s", left.String())
	}
}
