package command

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/command/cli"
)

// full behaves like a file on a full file system.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, unix.ENOSPC }

// TestOutputOnAFullDisk: a command whose output could not be written fails and prints the reason
// once.
func TestOutputOnAFullDisk(t *testing.T) {
	for _, args := range []string{
		"-help", "-version", "status -help", "validate -h", "network -h", "help status", "lease -help", "version", "version -format=json",
		"status", "status -format=json", "status -watch", "peers", "peers -probe", "events", "doctor", "network list", "network show default",
		"network plan testdata/change.hcl", "network apply testdata/same.hcl", "network delete blue",
		"lease list", "lease show default 10.5.34.0/24", "lease renew default", "lease release default", "lease revoke default 10.5.77.0/24",
		"reservation list default", "reservation add default 10.5.34.0/24 -node=host-b", "reservation remove default 10.5.40.0/24",
		"reload", "validate testdata/same.hcl", "fmt -", "cni -conflist", "cleanup -help",
	} {
		t.Run(args, func(t *testing.T) {
			f := newFakeAgent(t)
			f.plans = nil
			env := map[string]string{"LENO_ADDRESS": f.url}
			var stderr bytes.Buffer
			code := cli.Run(strings.Fields(args), cli.Meta{Stdin: strings.NewReader("a = 1\n"), Stdout: full{}, Stderr: &stderr,
				Getenv: func(name string) string { return env[name] }, Now: func() time.Time { return now },
				Version: "0.1.0"}, Commands)
			if code != cli.ExitFailed {
				t.Errorf("exit %d, want %d", code, cli.ExitFailed)
			}
			const want = "Error: standard output: no space left on device\n"
			if strings.Count(stderr.String(), want) != 1 || strings.Count(stderr.String(), unix.ENOSPC.Error()) != 1 {
				t.Errorf("standard error does not say %q once:\n%s", want, &stderr)
			}
		})
	}
}
