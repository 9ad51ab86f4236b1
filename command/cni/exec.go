package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/lenonet/leno/command/cli"
)

// executor runs other plugins and makes them end with this program. A plugin that continued alone
// would give an address to a container that the runtime has ended in the meantime.
type executor struct{ cniversion.PluginDecoder }

var _ invoke.Exec = (*executor)(nil)

func (*executor) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// busyPause is the time between attempts to run a plugin that is being installed.
const busyPause = 200 * time.Millisecond

// outputDelay is how long the output of a plugin that has ended is waited for. A child that it left running may keep it
// open.
const outputDelay = time.Second

// ExecPlugin runs a plugin and returns its standard output, or its error as a
// *types.Error.
func (e *executor) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	// Pdeathsig follows the forking thread, not the process: keep the thread while the plugin
	// runs.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for tries := 5; ; tries-- {
		var stdout, stderr bytes.Buffer
		c := exec.CommandContext(ctx, path)
		c.WaitDelay = outputDelay
		c.Env, c.Stdin, c.Stdout, c.Stderr = environ, bytes.NewReader(stdin), &stdout, &stderr
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err := c.Run()
		switch {
		case err == nil || errors.Is(err, exec.ErrWaitDelay): // the latter only after success
			return stdout.Bytes(), nil
		case !errors.Is(err, syscall.ETXTBSY) || tries == 0:
			return nil, pluginError(ctx, err, stdout.Bytes(), stderr.Bytes())
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(busyPause):
		}
	}
}

// pluginError returns the error that a plugin reported, in whatever form.
func pluginError(ctx context.Context, err error, stdout, stderr []byte) error {
	e := new(types.Error)
	switch {
	case ctx.Err() != nil:
		e.Msg = fmt.Sprintf("it was stopped: %v", context.Cause(ctx))
	case len(stdout) == 0 && len(stderr) == 0:
		e.Msg = fmt.Sprintf("it ended without an error message: %v", err)
	case len(stdout) == 0:
		e.Msg = fmt.Sprintf("it ended with %q: %v", stderr, err)
	case json.Unmarshal(stdout, e) != nil:
		e.Msg = fmt.Sprintf("it ended with %q, which is not a CNI error: %v", stdout, err)
	}
	return e
}

// callPlugin runs the plugin of a delegation for a command that returns no result.
func callPlugin(ctx context.Context, d delegation, conf []byte, args *invoke.Args) error {
	path, err := invoke.FindInPath(d.Plugin, strings.Split(args.Path, string(os.PathListSeparator)))
	if err == nil {
		err = invoke.ExecPluginWithoutResult(ctx, path, conf, args, &executor{})
	}
	if err != nil {
		return pluginErrorf(d, args.Path, err)
	}
	return nil
}

// checkVersion returns an error if a plugin says that it does not support a version of the specification. A plugin that
// is missing, or does not say, fails when it is called.
func checkVersion(ctx context.Context, plugin, path, version string) error {
	file, err := invoke.FindInPath(plugin, strings.Split(path, string(os.PathListSeparator)))
	if err != nil {
		return nil
	}
	info, err := invoke.GetVersionInfo(ctx, file, &executor{})
	if err != nil || slices.Contains(info.SupportedVersions(), version) {
		return nil
	}
	return errorf(types.ErrIncompatibleCNIVersion,
		"plugin %s does not support cniVersion %s, so ADD would fail: install a newer one "+
			"(reference plugins 1.6.0 or later), or set cniVersion to one of %s",
		plugin, version, strings.Join(info.SupportedVersions(), ", "))
}

// pluginErrorf adds to a plugin's error the name of the plugin and, if a person can act, the fix.
func pluginErrorf(d delegation, path string, err error) error {
	e, ok := err.(*types.Error)
	switch text := err.Error(); {
	case strings.Contains(text, "failed to find plugin"):
		return errorf(codeNoPlugin,
			"plugin %s is not in CNI_PATH (%s): install the reference plugins there, "+
				"https://github.com/containernetworking/plugins",
			wordAfter(text, "failed to find plugin "), path)
	case strings.Contains(text, "no IP addresses available in range set"):
		return exhaustedError(d, ": "+text)
	case strings.Contains(text, "failed to allocate all requested IPs"),
		strings.Contains(text, "requested IP address"), strings.Contains(text, "requested ip "):
		return errorf(types.ErrInvalidNetworkConfig, "network %s: %s; ask for a free address of this host's %s, or for none",
			d.Network, text, cli.Join(d.subnets))
	case !ok || e.Code == 0:
		return errorf(types.ErrInternal, "plugin %s: %s", d.Plugin, text)
	default:
		return types.NewError(e.Code, fmt.Sprintf("plugin %s: %s", d.Plugin, e.Msg), e.Details)
	}
}

// wordAfter returns the quoted word after before.
func wordAfter(text, before string) string {
	_, text, _ = strings.Cut(text, before)
	text, _, _ = strings.Cut(strings.TrimPrefix(text, `"`), `"`)
	return text
}

// exhaustedError returns the error for a subnet without a free address.
func exhaustedError(d delegation, more string) error {
	return errorf(codeExhausted,
		"network %s: no address is left in this host's %s%s. End containers, release what a crash left with the "+
			"runtime's GC, or give hosts larger subnets (see `leno network plan`)",
		d.Network, cli.Join(d.subnets), more)
}
