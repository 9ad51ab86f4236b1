package command

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/posener/complete"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/files"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/command/cli"
)

// formatter is `leno fmt`.
type formatter struct {
	meta                    cli.Meta
	check, write, recursive bool
	unformatted             int
}

func fmtSpec(m cli.Meta) cli.Spec {
	f := &formatter{meta: m}
	return cli.Spec{
		Name: "fmt", Args: "[PATH...]", Max: -1,
		Synopsis: "Rewrite configuration files in the canonical layout",
		Help: `
Formats HCL files. For a directory, it formats the files that end in .hcl;
without PATH, those of the current directory. With - it formats standard input
to standard output. It prints the names of the files that were not formatted.
A file with a syntax error is left unchanged, and its errors are printed.

  $ leno fmt /etc/leno.d
  $ leno fmt -check -recursive /etc/leno.d
  $ leno fmt - < leno.hcl`,
		Flags: func(fs *flag.FlagSet) {
			fs.BoolVar(&f.check, "check", false, "change nothing; exit 1 if a file is not formatted")
			fs.BoolVar(&f.write, "write", true, "rewrite the files; false prints the result instead")
			fs.BoolVar(&f.recursive, "recursive", false, "also format the directories below a directory")
		},
		Predict: complete.PredictFiles("*.hcl"),
		Run:     func(_ context.Context, args []string) error { return f.run(args) },
	}
}

func (f *formatter) run(args []string) error {
	if len(args) == 0 {
		args = []string{"."}
	}
	failed := false
	for _, path := range args {
		var err error
		switch {
		case path != "-":
			err = f.path(path)
		case len(args) > 1:
			return cli.UsageErrorf("- cannot be combined with other paths")
		default:
			err = f.stdin()
		}
		failed = err != nil || failed
	}
	if failed || f.check && f.unformatted > 0 {
		return cli.ErrReported
	}
	return nil
}

// fail prints an error at once, so that an error in one file does not stop the others.
func (f *formatter) fail(err error) error {
	f.meta.WriteError(err)
	return cli.ErrReported
}

func (f *formatter) stdin() error {
	src, err := io.ReadAll(f.meta.Stdin)
	if err != nil {
		return f.fail(fmt.Errorf("%s: %w", stdinName, err))
	}
	out, err := config.Format(src, stdinName)
	if err != nil {
		return f.fail(err)
	}
	if !bytes.Equal(src, out) {
		f.unformatted++
	}
	if f.check {
		return nil
	}
	_, err = f.meta.Stdout.Write(out)
	return err
}

func (f *formatter) path(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return f.fail(err)
	}
	if !info.IsDir() {
		return f.file(path)
	}
	var errs []error
	err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			errs = append(errs, f.fail(err))
		case d.IsDir() && p != path && !f.recursive:
			return filepath.SkipDir
		case !d.IsDir() && config.IsRead(d.Name()) && filepath.Ext(p) == ".hcl":
			errs = append(errs, f.file(p))
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

func (f *formatter) file(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), files.ReadTimeout)
	defer cancel()
	src, err := files.Read(ctx, path)
	if err != nil {
		return f.fail(err)
	}
	out, err := config.Format(src, path)
	if err != nil {
		return f.fail(err)
	}
	if !f.check && !f.write {
		_, err := f.meta.Stdout.Write(out)
		return err
	}
	if bytes.Equal(src, out) {
		return nil
	}
	f.unformatted++
	fmt.Fprintln(f.meta.Stdout, path)
	if f.check {
		return nil
	}
	if err := state.ReplaceFile(path, out); err != nil {
		return f.fail(err)
	}
	return nil
}
