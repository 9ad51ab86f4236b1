package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// labOwner is the environment variable that makes this test program lay out a lab and wait to be
// killed.
const labOwner = "LENO_TEST_LAB_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(labOwner) != "" {
		l, err := New(context.Background(), Options{Name: os.Getenv(labOwner), NoConsul: true, Hosts: 1})
		if err == nil {
			_, err = l.Hosts[0].Start("sleep", "1000")
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(l.ID)
		select {}
	}
	os.Exit(m.Run())
}

// TestSweep checks that Sweep removes the lab of a process that was killed and keeps that of a
// running one.
func TestSweep(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	ctx := within(t, 15*time.Minute)
	own := newLab(t, ctx, Options{NoConsul: true, Hosts: 1})
	owner := exec.CommandContext(ctx, os.Args[0])
	owner.Env = append(os.Environ(), labOwner+"=swept")
	owner.Stderr = os.Stderr
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err, owner.Wait())
	}
	id = strings.TrimSpace(id)
	t.Cleanup(func() {
		if err := Teardown(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // it was killed
	if len(namespacesOf(t, id)) != 2 {
		t.Errorf("namespaces of the killed process: %q", namespacesOf(t, id))
	}
	if err := Sweep(ctx); err != nil {
		t.Error(err)
	}
	if left := namespacesOf(t, id); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
	if _, err := os.Stat(directory(id)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
	if here := namespacesOf(t, own.ID); len(here) != 2 {
		t.Errorf("of the lab in use are left %q", here)
	}
	if _, err := own.Hosts[0].Exec(ctx, "true"); err != nil {
		t.Error(err)
	}
}
