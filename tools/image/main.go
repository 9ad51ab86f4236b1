// Image writes a container image for several architectures as an archive in the OCI layout. It needs no daemon, and the
// same files and date give the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run() error {
	out := flag.String("o", "", "the archive to write")
	version := flag.String("version", "", "the version of leno")
	revision := flag.String("revision", "", "the revision of the source, if it is known")
	date := flag.Int64("date", 0, "the date of all files, in seconds since 1970")
	flag.Parse()
	if *out == "" || *version == "" || flag.NArg() == 0 {
		return errors.New("usage: image -o FILE -version VERSION -date SECONDS ARCHITECTURE=DIRECTORY...")
	}
	b := builder{date: time.Unix(*date, 0).UTC(), labels: map[string]string{
		"org.opencontainers.image.title":       "leno",
		"org.opencontainers.image.description": "overlay network for Nomad, Docker and plain hosts",
		"org.opencontainers.image.version":     *version,
		"org.opencontainers.image.created":     time.Unix(*date, 0).UTC().Format(time.RFC3339),
		"org.opencontainers.image.source":      "https://github.com/lenonet/leno",
		"org.opencontainers.image.url":         "https://github.com/lenonet/leno",
		"org.opencontainers.image.licenses":    "MPL-2.0",
	}}
	if *revision != "" {
		b.labels["org.opencontainers.image.revision"] = *revision
	}
	var images []mutate.IndexAddendum
	for _, arg := range flag.Args() {
		arch, dir, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q is not ARCHITECTURE=DIRECTORY", arg)
		}
		image, err := b.image(arch, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		platform := &v1.Platform{OS: "linux", Architecture: arch}
		images = append(images, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	index := mutate.IndexMediaType(mutate.AppendManifests(empty.Index, images...), types.OCIImageIndex)
	dir, err := os.MkdirTemp("", "leno-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	tag := strings.ReplaceAll(*version, "+", "-") // a tag must not contain it
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": tag,                             // what skopeo and podman call the image
		"io.containerd.image.name":          "docker.io/library/leno:" + tag, // what docker load calls it
	})); err != nil {
		return err
	}
	return b.archive(*out, dir)
}

type builder struct {
	date   time.Time
	labels map[string]string
}

// image returns the image of one architecture, with one layer that contains the files of a directory.
func (b builder) image(arch, dir string) (v1.Image, error) {
	var files bytes.Buffer
	if err := b.tar(&files, dir); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: arch,
		OS:           "linux",
		Created:      v1.Time{Time: b.date},
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{"/usr/bin/leno"},
			Cmd:        []string{"agent", "-config-dir=/etc/leno.d"},
			Env:        []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
			Labels:     b.labels,
		},
	}); err != nil {
		return nil, err
	}
	return mutate.Append(image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: b.date}, CreatedBy: "tools/release"},
	})
}

// archive writes a directory in the OCI layout as a tar archive.
func (b builder) archive(name, dir string) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(b.tar(file, dir), file.Close())
}

// tar writes the files below a directory, sorted, as root's and with the date of the release.
func (b builder) tar(w io.Writer, dir string) error {
	var names []string
	if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && path != dir {
			names = append(names, path)
		}
		return err
	}); err != nil {
		return err
	}
	slices.Sort(names)
	t := tar.NewWriter(w)
	for _, path := range names {
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		if !info.IsDir() && !info.Mode().IsRegular() {
			return fmt.Errorf("%s is neither a file nor a directory", path)
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: name, ModTime: b.date, Mode: 0o644, Size: info.Size(), Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		switch {
		case info.IsDir():
			header.Name, header.Mode, header.Size, header.Typeflag = name+"/", 0o755, 0, tar.TypeDir
		case info.Mode()&0o100 != 0:
			header.Mode = 0o755
		}
		if err := t.WriteHeader(header); err != nil {
			return err
		}
		if info.IsDir() {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if _, err := t.Write(content); err != nil {
			return err
		}
	}
	return t.Close()
}
