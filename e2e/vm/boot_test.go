//go:build vm

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

func TestMain(m *testing.M) {
	if err := lab.Sweep(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "what a killed run left behind:", err)
	}
	os.Exit(m.Run())
}

// newLab lays out a lab for machines, with a Consul server or without one.
func newLab(t *testing.T, consul bool) (context.Context, *lab.Lab) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	t.Cleanup(cancel)
	l, err := lab.New(ctx, lab.Options{Name: "vm", NoHosts: true, NoConsul: !consul})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx, l
}

// start starts a machine. If the test fails, the end of its console is shown.
func start(t *testing.T, ctx context.Context, l *lab.Lab, o Options) *Machine {
	t.Helper()
	m, err := Start(ctx, l, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the console of %s:\n%s", m.Name, m.ConsoleTail(40))
		}
	})
	return m
}

// defaultKernel is the kernel of tests that are about something else.
const defaultKernel = "6.12"

func TestMachine(t *testing.T) {
	ctx, l := newLab(t, false)
	hello := t.TempDir() + "/hello"
	if err := os.WriteFile(hello, []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	m := start(t, ctx, l, Options{Name: "vm-a", Kernel: defaultKernel, Files: map[string]string{"some/file": hello}})
	t.Logf("boot: %s", time.Since(began))

	if got, err := m.Run(ctx, "uname", "-r"); err != nil || !strings.HasPrefix(got, defaultKernel+".") {
		t.Errorf("kernel %q, %v", got, err)
	}
	if got, err := m.ReadFile(ctx, "/mnt/some/file"); err != nil || got != "hello\n" {
		t.Errorf("a file of the host: %q, %v", got, err)
	}
	out, err := m.Run(ctx, "sh", "-c", "echo out; echo problem >&2; exit 3")
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Code != 3 || out != "out\n" || !strings.Contains(err.Error(), "problem") {
		t.Errorf("exit code 3: %q, %v", out, err)
	}
	if _, err := m.Run(ctx, "no-such-program"); err == nil {
		t.Error("a program that does not exist was run")
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	if _, err := m.Run(short, "sleep", "1234"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a program that does not end: %v", err)
	}
	cancel()
	err = lab.WaitFor(ctx, "the program to be killed", func(ctx context.Context) error {
		_, err := m.Run(ctx, "sh", "-c", "! pgrep -f '[s]leep 1234'")
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if out, err := l.Switch.Exec(ctx, "ping", "-c", "1", "-W", "10", m.Addrs[0].String()); err != nil {
		t.Errorf("%v\n%s", err, out)
	}

	big := strings.Repeat("0123456789abcde\n", 1<<14)
	if err := m.WriteFile(ctx, "/etc/some/file", big); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	if err := m.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("reboot: %s", time.Since(began))
	if got, err := m.ReadFile(ctx, "/etc/some/file"); err != nil || got != big {
		t.Errorf("a file that was written before the reboot: %d bytes, %v", len(got), err)
	}
	if got, err := m.Run(ctx, "hostname"); err != nil || got != "vm-a\n" {
		t.Errorf("host name: %q, %v", got, err)
	}

	if _, err := m.Run(ctx, "sync"); err != nil {
		t.Fatal(err)
	}
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Run(ctx, "true"); err == nil {
		t.Error("a program ran in a machine that is off")
	}
	if err := m.Boot(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := m.ReadFile(ctx, "/etc/some/file"); err != nil || got != big {
		t.Errorf("a file that was written before the power failed: %d bytes, %v", len(got), err)
	}
	if _, err := m.Run(ctx, "sh", "-c", "echo c >/proc/sysrq-trigger"); err == nil || !strings.Contains(err.Error(), "sysrq_handle_crash") {
		t.Errorf("the error of a command during which the kernel panics has no console: %v", err)
	}
}

// TestNoBoot starts machines that do not boot: the error has the end of the console, and no process
// is left.
func TestNoBoot(t *testing.T) {
	t.Parallel() // most of the time it waits
	for _, tt := range []struct {
		name, parameter, want string
		limit                 time.Duration
	}{
		{"panic", "rdinit=/none", "Kernel panic", 4 * time.Minute},
		{"hang", `rdinit=/bin/busybox -- sh -c "echo begun; exec /bin/busybox sleep 9999"`, "begun", 30 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, l := newLab(t, false)
			limited, cancel := context.WithTimeout(ctx, tt.limit)
			defer cancel()
			m, err := Start(limited, l, Options{Name: "vm-a", Kernel: defaultKernel, Parameters: []string{tt.parameter}})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("want the console with %q, got %v", tt.want, err)
			}
			if errors.Is(err, context.DeadlineExceeded) != (tt.name == "hang") {
				t.Errorf("it took too long, or too short: %v", err)
			}
			if pids, err := l.Switch.Pids(ctx); err != nil || len(pids) != 0 {
				t.Errorf("processes %d are left, %v", pids, err)
			}
			if m != nil && m.process.IsRunning() {
				t.Error("QEMU is running")
			}
		})
	}
}
