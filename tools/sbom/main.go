// Sbom writes the list of what is in a Go program in SPDX 2.3. It takes the modules from the program itself, and their
// licences from the files of the modules. The same program gives the same bytes.
package main

import (
	"bufio"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run() error {
	out := flag.String("o", "", "the file to write")
	version := flag.String("version", "", "the version of leno")
	date := flag.Int64("date", 0, "the date of the document, in seconds since 1970")
	flag.Parse()
	if *out == "" || *version == "" || flag.NArg() != 1 {
		return errors.New("usage: sbom -o FILE -version VERSION -date SECONDS PROGRAM <MODULES, where each line of MODULES is PATH VERSION DIRECTORY")
	}
	program := flag.Arg(0)
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	dirs := map[string]string{} // by path and version
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) == 3 {
			dirs[f[0]+" "+f[1]] = f[2]
		}
	}
	known, err := assets.DefaultClassifier()
	if err != nil {
		return err
	}
	doc, err := document(info, sha256.Sum256(content), *version, time.Unix(*date, 0).UTC(), dirs, known)
	if err != nil {
		return err
	}
	file, err := os.Create(*out)
	if err != nil {
		return err
	}
	return errors.Join(spdxjson.Write(doc, file, spdxjson.Indent("  ")), file.Close())
}

const (
	unknown = "NOASSERTION"
	project = "https://github.com/lenonet/leno"
)

func document(info *buildinfo.BuildInfo, sum [sha256.Size]byte, version string, date time.Time, dirs map[string]string, known *classifier.Classifier) (*spdx.Document, error) {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	name := fmt.Sprintf("leno-%s-%s-%s", version, settings["GOOS"], settings["GOARCH"])
	root := newPackage("leno", "leno", version)
	root.PrimaryPackagePurpose = "APPLICATION"
	root.PackageLicenseDeclared = "MPL-2.0"
	root.PackageHomePage = project
	root.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: hex.EncodeToString(sum[:])}}
	root.PackageExternalReferences = purl(info.Main.Path, "v"+version)
	doc := &spdx.Document{
		SPDXVersion:       spdx.Version,
		DataLicense:       spdx.DataLicense,
		SPDXIdentifier:    "DOCUMENT",
		DocumentName:      name,
		DocumentNamespace: project + "/spdx/" + name + "-" + hex.EncodeToString(sum[:]),
		CreationInfo: &spdx.CreationInfo{
			Created:  date.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Organization", Creator: "leno maintainers"}, {CreatorType: "Tool", Creator: "leno-tools-sbom"}},
		},
		Packages:      []*spdx.Package{root},
		Relationships: []*spdx.Relationship{relationship("DOCUMENT", "DESCRIBES", "leno")},
	}
	add := func(p *spdx.Package) {
		doc.Packages = append(doc.Packages, p)
		doc.Relationships = append(doc.Relationships, relationship("leno", "DEPENDS_ON", string(p.PackageSPDXIdentifier)))
	}
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	standard := newPackage("stdlib", "stdlib", goVersion)
	standard.PackageLicenseDeclared = "BSD-3-Clause"
	standard.PackageExternalReferences = purl("stdlib", goVersion)
	add(standard)
	slices.SortFunc(info.Deps, func(a, b *debug.Module) int { return strings.Compare(a.Path, b.Path) })
	for i, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		p := newPackage(fmt.Sprintf("module-%d", i+1), m.Path, m.Version)
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:"))
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("module %s has the checksum %q", m.Path, m.Sum)
		}
		p.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: hex.EncodeToString(sum)}}
		p.PackageComment = "The checksum is the h1 hash of go.sum in hexadecimal: " + m.Sum
		p.PackageExternalReferences = purl(m.Path, m.Version)
		p.PackageDownloadLocation = unknown
		dir, ok := dirs[m.Path+" "+m.Version]
		if !ok {
			return nil, fmt.Errorf("the directory of %s %s is not in the list of modules", m.Path, m.Version)
		}
		if p.PackageLicenseDeclared, err = license(known, dir); err != nil {
			return nil, err
		}
		add(p)
	}
	return doc, nil
}

func newPackage(id, name, version string) *spdx.Package {
	return &spdx.Package{
		PackageSPDXIdentifier:   common.ElementID(id),
		PackageName:             name,
		PackageVersion:          version,
		PackageDownloadLocation: unknown,
		PackageLicenseConcluded: unknown,
		PackageLicenseDeclared:  unknown,
		PackageCopyrightText:    unknown,
	}
}

func relationship(from, kind, to string) *spdx.Relationship {
	return &spdx.Relationship{
		RefA:         common.MakeDocElementID("", from),
		RefB:         common.MakeDocElementID("", to),
		Relationship: kind,
	}
}

// purl returns the module's package URL.
func purl(path, version string) []*spdx.PackageExternalReference {
	return []*spdx.PackageExternalReference{{
		Category: common.CategoryPackageManager,
		RefType:  common.TypePackageManagerPURL,
		Locator:  "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B"),
	}}
}

// confidence is how much of a licence's text must be as in the original. The holders of the copyright always differ.
const confidence = 0.95

// license returns the SPDX identifier of a module's licence, or NOASSERTION if the module has several licence files, or a
// file with anything else than one known licence.
func license(known *classifier.Classifier, dir string) (string, error) {
	var files []string
	for _, pattern := range []string{"LICENSE*", "LICENCE*", "COPYING*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return "", err
		}
		files = append(files, found...)
	}
	if len(files) != 1 {
		return unknown, nil
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return "", err
	}
	id := unknown
	for _, m := range known.Match(text).Matches {
		switch {
		case m.MatchType == "Copyright":
		case m.MatchType != "License" || m.Confidence < confidence || id != unknown && id != m.Name:
			return unknown, nil
		default:
			id = m.Name
		}
	}
	return id, nil
}
