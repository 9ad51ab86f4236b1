package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lenonet/leno/internal/testkit/programs"
)

// TestDebianRootBelowRestrictedTmp builds the Debian of these tests where /tmp allows neither
// devices nor programs, as systemd mounts it. A program that stands for debootstrap has the same
// requirements.
func TestDebianRootBelowRestrictedTmp(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	t.Parallel()
	dir := t.TempDir()
	const debootstrap = `#!/bin/sh
set -e
mkdir "$4"
mknod -m 666 "$4/null" c 1 3
: >"$4/null"
rm "$4/null"
printf '#!/bin/sh\n' >"$4/program"
chmod 755 "$4/program"
"$4/program"
mkdir "$4/proc"
mount -t proc proc "$4/proc"
`
	if err := programs.Write(filepath.Join(dir, "debootstrap"), []byte(debootstrap)); err != nil {
		t.Fatal(err)
	}
	const script = `
mkdir "$1/tmp"
mount -t tmpfs -o nodev,nosuid,noexec tmpfs "$1/tmp"
PATH=$1:$PATH TMPDIR=$1/tmp XDG_CACHE_HOME=$1/cache tools/get -pinned debian-root
find "$1/tmp" -mindepth 1`
	command := exec.Command("unshare", "--mount", "sh", "-euc", script, "sh", dir)
	command.Dir = source
	var said strings.Builder
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	archive := strings.TrimSpace(string(out))
	if list := output(t, "tar", "-tf", archive); !strings.Contains(list, "./program\n") {
		t.Errorf("%s has %s", archive, list)
	}
}
