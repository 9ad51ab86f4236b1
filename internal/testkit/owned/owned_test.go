package owned

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// holder is the environment variable that makes this test program own a directory until it is
// killed.
const holder = "LENO_TEST_OWNED"

func TestMain(m *testing.M) {
	if path := os.Getenv(holder); path != "" {
		if _, err := Make(path); err != nil {
			panic(err)
		}
		os.Stdout.WriteString("made\n")
		select {}
	}
	os.Exit(m.Run())
}

func TestSweep(t *testing.T) {
	base := t.TempDir()
	path := func(name string) string { return filepath.Join(base, name) }
	own, err := Make(path("lab-own"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Make(path("lab-own")); !errors.Is(err, os.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	kept, err := Make(path("lab-kept"))
	if err != nil || kept.Keep() != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path("lab-foreign"), 0o700); err != nil {
		t.Fatal(err)
	}
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), holder+"="+path("lab-left"))
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "made\n" {
		t.Fatal(line, err)
	}
	sweep := func(want ...string) {
		t.Helper()
		var got []string
		err := Sweep(path("lab-*"), func(path string) error {
			got = append(got, filepath.Base(path))
			return os.RemoveAll(path)
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("swept %q, want %q, %v", got, want, err)
		}
	}
	sweep()
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait() // it was killed
	sweep("lab-left")
	sweep()
	if err := own.Remove(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(base)
	if err != nil || len(left) != 2 {
		t.Errorf("left are %v, %v", left, err)
	}
}
