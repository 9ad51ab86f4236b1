package packages

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdxlib"
)

// TestSBOM compares the list of modules with the program in the deb.
func TestSBOM(t *testing.T) {
	dir := t.TempDir()
	output(t, "dpkg-deb", "--extract", deb(t, "first"), dir)
	program := filepath.Join(dir, "usr/bin/leno")
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file(t, "first/leno_1.0.0_linux_"+runtime.GOARCH+".spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := spdxjson.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		t.Error(err)
	}
	if doc.SPDXVersion != "SPDX-2.3" || doc.CreationInfo.Created != "2023-11-14T22:13:20Z" {
		t.Errorf("it is %s of %s", doc.SPDXVersion, doc.CreationInfo.Created)
	}
	packages := map[string]*spdx.Package{}
	for _, p := range doc.Packages {
		packages[p.PackageName+" "+p.PackageVersion] = p
	}
	check := func(name, version, purl, sum string) {
		t.Helper()
		p := packages[name+" "+version]
		switch {
		case p == nil:
			t.Errorf("%s %s is missing", name, version)
			return
		case len(p.PackageExternalReferences) != 1 || p.PackageExternalReferences[0].Locator != purl:
			t.Errorf("%s is at %v, want %s", name, p.PackageExternalReferences, purl)
		case sum != "" && (len(p.PackageChecksums) != 1 || p.PackageChecksums[0] != common.Checksum{Algorithm: common.SHA256, Value: sum}):
			t.Errorf("%s has the checksum %v, want %s", name, p.PackageChecksums, sum)
		}
	}
	sum := sha256.Sum256(content)
	check("leno", "1.0.0", "pkg:golang/github.com/lenonet/leno@v1.0.0", hex.EncodeToString(sum[:]))
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	check("stdlib", goVersion, "pkg:golang/stdlib@"+goVersion, "")
	for _, m := range info.Deps {
		h1, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:"))
		if err != nil {
			t.Fatal(err)
		}
		check(m.Path, m.Version, "pkg:golang/"+m.Path+"@"+strings.ReplaceAll(m.Version, "+", "%2B"), hex.EncodeToString(h1))
	}
	if want := len(info.Deps) + 2; len(doc.Packages) != want {
		t.Errorf("%d packages, want %d", len(doc.Packages), want)
	}
	if len(doc.Relationships) != len(doc.Packages) {
		t.Errorf("%d relationships of %d packages", len(doc.Relationships), len(doc.Packages))
	}
	// Licences that are known, and one of a module with two licence files.
	for name, want := range map[string]string{
		"leno": "MPL-2.0", "stdlib": "BSD-3-Clause", "github.com/hashicorp/hcl/v2": "MPL-2.0", "google.golang.org/grpc": "Apache-2.0",
		"github.com/fatih/color": "MIT", "go.yaml.in/yaml/v2": "NOASSERTION",
	} {
		for _, p := range doc.Packages {
			if p.PackageName == name && p.PackageLicenseDeclared != want {
				t.Errorf("the licence of %s is %s, want %s", name, p.PackageLicenseDeclared, want)
			}
		}
	}
}
