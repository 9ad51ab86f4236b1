package command

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strconv"

	"github.com/lenonet/leno/command/cli"
)

// versionOutput is the output of `leno version -format=json`.
type versionOutput struct {
	Version  string `json:"version"`
	Revision string `json:"revision"` // of the source, "" if the build did not record it
	Modified bool   `json:"modified"` // built from a tree with uncommitted changes
	Time     string `json:"time"`     // of the revision, RFC 3339
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

func versionSpec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	return cli.Spec{
		Name:     "version",
		Synopsis: "Print the version",
		Help: `Prints the version of this program and how it was built.

  $ leno version
  $ leno version -format=json`,
		Flags: s.Format.Register,
		Run: func(context.Context, []string) error {
			out := version(m)
			return s.Print(out, func(w io.Writer) {
				fmt.Fprintf(w, "leno %s\n", out.Version)
				if out.Revision != "" {
					modified := ""
					if out.Modified {
						modified = " with changes"
					}
					fmt.Fprintf(w, "revision %s%s of %s\n", out.Revision, modified, out.Time)
				}
				fmt.Fprintf(w, "%s %s/%s\n", out.Go, out.OS, out.Arch)
			})
		},
	}
}

func version(m cli.Meta) versionOutput {
	out := versionOutput{Version: m.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if m.Build == nil {
		return out
	}
	for _, s := range m.Build.Settings {
		switch s.Key {
		case "vcs.revision":
			out.Revision = s.Value
		case "vcs.modified":
			out.Modified, _ = strconv.ParseBool(s.Value)
		case "vcs.time":
			out.Time = s.Value
		}
	}
	return out
}
