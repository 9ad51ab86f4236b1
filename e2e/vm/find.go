package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// FindImage returns the path of the machines' root file system: the one that LENO_TEST_VM_IMAGE
// names (make vm-test sets it), or the one that `tools/get vm-image` has created.
func FindImage() (string, error) {
	if path := os.Getenv("LENO_TEST_VM_IMAGE"); path != "" {
		return path, nil
	}
	return newest("vm-image-*/root.img", "tools/get vm-image")
}

// Kernels returns the names of the kernels that LENO_TEST_VM_KERNELS lists (make vm-test sets it),
// from oldest to newest. An entry is NAME=DIRECTORY, and entries are separated by spaces.
func Kernels() []string {
	var names []string
	for _, entry := range strings.Fields(os.Getenv("LENO_TEST_VM_KERNELS")) {
		name, _, _ := strings.Cut(entry, "=")
		names = append(names, name)
	}
	return names
}

// A kernel is a directory that `tools/get vm-kernel` has created.
type kernel string

func (k kernel) path(file string) string { return filepath.Join(string(k), file) }

// findKernel returns the kernel that LENO_TEST_VM_KERNELS lists under the name, or the one that
// `tools/get vm-kernel` has created.
func findKernel(name string) (kernel, error) {
	for _, entry := range strings.Fields(os.Getenv("LENO_TEST_VM_KERNELS")) {
		if dir, ok := strings.CutPrefix(entry, name+"="); ok {
			return kernel(dir), nil
		}
	}
	built, err := newest("vm-kernel-"+name+"-*/built", "tools/get vm-kernel "+name)
	return kernel(filepath.Dir(built)), err
}

// newest returns the file of the tool cache that matches the pattern and was created last.
func newest(pattern, command string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	paths, err := filepath.Glob(filepath.Join(cache, "leno-tools", pattern))
	if err != nil {
		return "", err
	}
	var found string
	var latest int64
	for _, path := range paths {
		info, err := os.Stat(path)
		if err == nil && info.ModTime().UnixNano() > latest {
			found, latest = path, info.ModTime().UnixNano()
		}
	}
	if found == "" {
		return "", fmt.Errorf("nothing in the cache from `%s`", command)
	}
	return found, nil
}
