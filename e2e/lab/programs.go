package lab

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
)

// FindConsul returns the path of a Consul: the one that LENO_TEST_CONSUL
// names (make test sets it), the one on PATH, or the one that `tools/get
// consul` has built.
func FindConsul() (string, error) {
	if path := os.Getenv("LENO_TEST_CONSUL"); path != "" {
		return path, nil
	}
	if path, err := exec.LookPath("consul"); err == nil {
		return path, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	built, err := filepath.Glob(filepath.Join(cache, "leno-tools", "consul-*", "consul"))
	if err != nil {
		return "", err
	}
	if len(built) == 0 {
		return "", errors.New("no consul in LENO_TEST_CONSUL, on PATH or built by `tools/get consul`")
	}
	return built[len(built)-1], nil
}

// FindLeno returns the path of a leno binary: the one that LENO_TEST_LENO
// names (make test sets it, with the race detector), or one built into dir now,
// which must then be called from inside the module.
func FindLeno(ctx context.Context, dir string) (string, error) {
	if path := os.Getenv("LENO_TEST_LENO"); path != "" {
		return path, nil
	}
	path := filepath.Join(dir, "leno")
	if _, err := run(ctx, "", "go", "build", "-race", "-o", path, "github.com/lenonet/leno"); err != nil {
		return "", err
	}
	return path, nil
}
