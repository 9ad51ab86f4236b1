package packages

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestImage copies the image with skopeo, unpacks it with umoci, and runs an agent in its file system, which has no
// other programs. The host has no iptables there, so the agent uses nftables.
func TestImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: chroot")
	}
	t.Parallel()
	dir := t.TempDir()
	output(t, "skopeo", "copy", "--quiet", "oci-archive:"+file(t, "first/leno_1.0.0_oci.tar")+":1.0.0", "oci:"+dir+"/oci:leno")
	rootfs := filepath.Join(dir, "root")
	output(t, "umoci", "raw", "unpack", "--image", dir+"/oci:leno", rootfs)

	want := `d 755 etc
d 755 etc/leno.d
d 755 run
d 755 run/leno
d 755 tmp
d 755 usr
d 755 usr/bin
d 755 usr/share
d 755 usr/share/doc
d 755 usr/share/doc/leno
d 755 var
d 755 var/lib
d 755 var/lib/leno
f 644 usr/share/doc/leno/LICENSE
f 644 usr/share/doc/leno/third-party-licenses
f 755 usr/bin/leno
`
	list := output(t, "sh", "-euc", `find "$1" -mindepth 1 -printf '%y %m %P\n' | LC_ALL=C sort`, "sh", rootfs)
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if got := output(t, "find", rootfs, "-mindepth", "1", "(", "!", "-uid", "0", "-o", "-newermt", "@1700000000", ")"); got != "" {
		t.Errorf("not root's, or newer than the release:\n%s", got)
	}
	if out := output(t, "chroot", rootfs, "/usr/bin/leno", "version"); !strings.HasPrefix(out, "leno 1.0.0\n") {
		t.Errorf("version: %s", out)
	}
	const script = `
ip link set lo up
ip link add eth0 type veth peer name peer0
ip addr add 192.0.2.1/24 dev eth0
ip link set eth0 up
ip link set peer0 up
ip route add default via 192.0.2.254
mkdir "$1/proc" "$1/dev"
mount -t proc proc "$1/proc"
chroot "$1" /usr/bin/leno agent -dev >"$2" 2>&1 &
timeout 300 sh -c 'until chroot "$1" /usr/bin/leno status >/dev/null 2>&1; do sleep 0.1; done' sh "$1"
chroot "$1" /usr/bin/leno status
nft list tables
ip -brief link show type vxlan
`
	log := filepath.Join(dir, "log")
	cmd := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-euc", script, "sh", rootfs, log)
	out, err := cmd.CombinedOutput()
	if err != nil {
		said, _ := os.ReadFile(log)
		t.Fatalf("%v\n%s\n%s", err, out, said)
	}
	for _, part := range []string{"1 network ready", "table inet leno", "leno"} {
		if !strings.Contains(string(out), part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
}

// imageConfig is the configuration of an image, as skopeo prints it.
type imageConfig struct {
	Created      time.Time `json:"created"`
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Config       struct {
		User       string            `json:"User"`
		Entrypoint []string          `json:"Entrypoint"`
		Cmd        []string          `json:"Cmd"`
		Labels     map[string]string `json:"Labels"`
	} `json:"config"`
}

func inspectImage(t *testing.T, archive, arch string) imageConfig {
	t.Helper()
	var c imageConfig
	text := output(t, "skopeo", "inspect", "--config", "--override-arch", arch, "--override-os", "linux", "oci-archive:"+archive)
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return c
}

// TestImageConfiguration checks what a runtime and a registry learn from the image.
func TestImageConfiguration(t *testing.T) {
	c := inspectImage(t, file(t, "first/leno_1.0.0_oci.tar"), runtime.GOARCH)
	date := time.Unix(1700000000, 0).UTC()
	if !c.Created.Equal(date) || c.Architecture != runtime.GOARCH || c.OS != "linux" || c.Config.User != "" {
		t.Errorf("the image is %+v", c)
	}
	if command := slices.Concat(c.Config.Entrypoint, c.Config.Cmd); !slices.Equal(command, []string{"/usr/bin/leno", "agent", "-config-dir=/etc/leno.d"}) {
		t.Errorf("it runs %q", command)
	}
	for label, want := range map[string]string{"version": "1.0.0", "created": date.Format(time.RFC3339), "licenses": "MPL-2.0", "source": "https://github.com/lenonet/leno"} {
		if got := c.Config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
}

// TestImageOfTwoPlatforms puts two directories into one image: each platform finds its own.
func TestImageOfTwoPlatforms(t *testing.T) {
	dir := t.TempDir()
	for _, arch := range []string{"amd64", "arm64"} {
		if err := os.MkdirAll(filepath.Join(dir, arch), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, arch, "program"), []byte(arch), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	archive := filepath.Join(dir, "image.tar")
	output(t, filepath.Join(made, "image"), "-o", archive, "-version", "1.0.0+2", "-date", "1700000000", "amd64="+dir+"/amd64", "arm64="+dir+"/arm64")
	for _, arch := range []string{"amd64", "arm64"} {
		if c := inspectImage(t, archive, arch); c.Architecture != arch {
			t.Errorf("%s finds %+v", arch, c)
		}
		layout := filepath.Join(dir, "oci-"+arch)
		output(t, "skopeo", "copy", "--quiet", "--override-arch", arch, "oci-archive:"+archive+":1.0.0-2", "oci:"+layout+":leno")
		if os.Geteuid() != 0 {
			continue // umoci sets owners
		}
		output(t, "umoci", "raw", "unpack", "--image", layout+":leno", layout+"-root")
		if text, err := os.ReadFile(layout + "-root/program"); err != nil || string(text) != arch {
			t.Errorf("%s: %q, %v", arch, text, err)
		}
	}
}
