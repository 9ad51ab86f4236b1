package tools

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/internal/testkit/programs"
)

// fakeTests is a machine on which make test finds one package, ./agent, with the tests that gotestsum reports.
func fakeTests(gotestsum string) map[string]string {
	return map[string]string{
		"tools/setup":   "",
		"tools/asroot":  `[[ $1 == -check ]] || exec "$@"`,
		"tools/get":     `echo gotestsum`,
		"bin/go":        `echo github.com/lenonet/leno/agent`,
		"bin/git":       `echo 1a2b3c4`,
		"bin/gotestsum": "for word in \"$@\"; do case $word in --jsonfile=*) exec >\"${word#*=}\" ;; esac; done\n" + gotestsum,
	}
}

// TestSecondChance checks which failures of .ci/run are forgiven, and that none is forgiven in silence.
func TestSecondChance(t *testing.T) {
	t.Parallel()
	// failed is what go test reports of a failed test.
	failed := func(names ...string) string {
		var b strings.Builder
		for _, name := range names {
			fmt.Fprintf(&b, "echo '{\"Action\":\"fail\",\"Package\":\"leno/agent\",\"Test\":%q}'\n", name)
		}
		return b.String() + `echo '{"Action":"output","Package":"leno/agent","Output":"FAIL\n"}'
			echo '{"Action":"fail","Package":"leno/agent"}'` + "\nexit 1\n"
	}
	// ended is what go test reports of a program that ends in the middle of TestA, after it has printed a text.
	ended := func(text string) string {
		return `echo '{"Action":"fail","Package":"leno/agent","Test":"TestB"}'
			echo '{"Action":"output","Package":"leno/agent","Test":"TestA","Output":"` + text + `\n"}'
			echo '{"Action":"fail","Package":"leno/agent"}'` + "\nexit 1\n"
	}
	// once fails all tests, and passes each that runs alone.
	once := func(failed string) string {
		return "if [[ \" $* \" == *' -run '* ]]; then echo \"$*\" >>again; exit 0; fi\n" + failed
	}
	for _, tt := range []struct {
		name, gotestsum string
		env             string
		flaky           []string // the tests that are named if the run passes
		alone           int      // how many tests ran again
	}{
		{name: "in .ci/run", gotestsum: once(failed("TestA", "TestB", "TestB/case")), env: "LENO_TEST_AGAIN=1",
			flaky: []string{"leno/agent TestA", "leno/agent TestB"}, alone: 2},
		{name: "for a person", gotestsum: once(failed("TestA"))},
		{name: "too many", gotestsum: once(failed("TestA", "TestB", "TestC", "TestD")), env: "LENO_TEST_AGAIN=1"},
		{name: "again", gotestsum: failed("TestA"), env: "LENO_TEST_AGAIN=1"},
		{name: "does not compile", gotestsum: once("echo '{\"Action\":\"fail\",\"Package\":\"leno/agent\"}'; exit 1\n"), env: "LENO_TEST_AGAIN=1"},
		{name: "ended early", gotestsum: once(ended("panic: no")), env: "LENO_TEST_AGAIN=1"},
		{name: "the race detector failed", gotestsum: once(ended("ThreadSanitizer: CHECK failed: tsan_rtl.cpp:346")), env: "LENO_TEST_AGAIN=1",
			flaky: []string{"leno/agent all"}, alone: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			others := fakeTests(tt.gotestsum)
			others["tools/again"] = "export XDG_CACHE_HOME=$PWD/cache TMPDIR=$PWD LENO_TEST_FLAKY=$PWD/named LENO_TEST_AGAIN= " + tt.env + "\nexec \"${0%again}test\" ./agent"
			for name, text := range others {
				write(t, filepath.Join(dir, name), "#!/bin/bash\n"+text+"\n")
			}
			said, err := run(t, dir, "test", nil)
			if err == nil && tt.env == "" {
				t.Errorf("a failure passed:\n%s", said)
			}
			cmd := exec.Command("bash", filepath.Join(dir, "tools/again"))
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir+"/bin:"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if (err == nil) != (len(tt.flaky) > 0) {
				t.Errorf("%v\n%s", err, out)
			}
			named := read(t, filepath.Join(dir, "named"))
			list := read(t, filepath.Join(dir, "cache/leno-tools/flaky"))
			for _, name := range tt.flaky {
				_, test, _ := strings.Cut(name, " ")
				if output := read(t, filepath.Join(dir, "cache/leno-tools/flaky.output/1a2b3c4."+test+".json")); !strings.Contains(output, `"Test":"Test`) {
					t.Errorf("the output of %s that was kept: %q", name, output)
				}
				if line := "FLAKY: " + name + "\n"; !strings.Contains(string(out), line) || !strings.Contains(named, line) || !strings.Contains(list, " 1a2b3c4 "+name+"\n") {
					t.Errorf("%s is not named in the output, in %q or in %q:\n%s", name, named, list, out)
				}
			}
			if len(tt.flaky) == 0 && named+list != "" {
				t.Errorf("named %q, listed %q", named, list)
			}
			if alone := strings.Count(read(t, filepath.Join(dir, "again")), "\n"); alone != tt.alone {
				t.Errorf("%d tests ran again, want %d", alone, tt.alone)
			}
		})
	}
}

// TestStress checks that a test binary runs with one seed after another, and that failures are counted and named.
func TestStress(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	said, err := run(t, dir, "stress", map[string]string{
		"tools/asroot": `exec "$@"`,
		"bin/binary":   `echo "seed $LENO_TEST_SEED, $*"; [[ $LENO_TEST_SEED != 2 ]]`,
		"bin/env":      "",
	}, "-exec", filepath.Join(dir, "bin/env"))
	if err == nil {
		t.Errorf("without the number of runs, it ran:\n%s", said)
	}
	cmd := exec.Command("bash", filepath.Join(dir, "tools/stress"), "-exec", filepath.Join(dir, "bin/binary"), "-test.run=X")
	cmd.Env = append(os.Environ(), "STRESS_RUNS=3", "STRESS_LOAD=1", "STRESS_LOG="+log)
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("a failure passed")
	}
	for _, want := range []string{"seed 1, -test.run=X\nseed 2, -test.run=X\n", "repeat it with LENO_TEST_SEED=2\nseed 3, "} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it printed %q, want %q in it", out, want)
		}
	}
	if text := read(t, log); strings.Count(text, "passed") != 2 || !strings.Contains(text, "LENO_TEST_SEED=2\n") {
		t.Errorf("the log is %q", text)
	}
}

// inputs are files of the product, and parts of make test-all that a change of each must select.
var inputs = map[string]string{
	"registry/belief/belief.go":  "kubernetes",
	"registry/claim/claim.go":    "kubernetes",
	"registry/replica/list.go":   "kubernetes",
	"command/docker/options.go":  "docker",
	"command/flannel_adopt.go":   "migrate",
	"command/store_copy.go":      "migrate",
	"agent/handover/handover.go": "migrate",
	"agent/fleet/fleet.go":       "page",
	"agent/httpapi/httpapi.go":   "template doctor telemetry",
	"tools/needs":                "kubernetes nomad",
	"go.sum":                     "kubernetes nomad demo-etcd",
}

// TestParts checks which parts of make test-all .ci/run selects after a change.
func TestParts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "tools/parts"), read(t, "../../tools/parts"))
	git := func(args ...string) {
		t.Helper()
		args = append([]string{"-C", dir, "-c", "user.name=n", "-c", "user.email=e"}, args...)
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	parts := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("bash", append([]string{filepath.Join(dir, "tools/parts")}, args...)...)
		cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("parts %q: %v\n%s", args, err, out)
		}
		return strings.Join(strings.Fields(string(out)), " ")
	}
	write(t, filepath.Join(dir, "registry/etcd/etcd.go"), "package etcd\n")
	for file := range inputs {
		write(t, filepath.Join(dir, file), "first\n")
	}
	git("init", "--quiet")
	git("add", ".")
	git("commit", "--quiet", "--message=first")
	all := parts("names")
	if got := parts("passed"); got != "" {
		t.Errorf("passed at %q before any run", got)
	}
	parts("passed", "HEAD")
	passed := parts("passed")
	if got := parts("changed", passed); got != "" {
		t.Errorf("without a change: %q", got)
	}
	if got := parts("changed", "0123456789012345678901234567890123456789"); got != all {
		t.Errorf("after an unknown revision: %q, want all: %q", got, all)
	}
	write(t, filepath.Join(dir, "website/new.md"), "new\n") // not added
	if got := parts("changed", passed); got != "site docs" {
		t.Errorf("after a new page: %q", got)
	}
	write(t, filepath.Join(dir, "registry/etcd/etcd.go"), "package etcd // changed\n")
	git("add", "registry", "website")
	git("commit", "--quiet", "--message=second")
	if got := parts("changed", passed); got != "migrate site docs soak scale demo-etcd" {
		t.Errorf("after a change of the etcd store, too: %q", got)
	}
	for file, want := range inputs {
		write(t, filepath.Join(dir, file), "second\n")
		changed := strings.Fields(parts("changed", "HEAD"))
		for _, part := range strings.Fields(want) {
			if !slices.Contains(changed, part) {
				t.Errorf("after a change of %s: %q, want %s among them", file, changed, part)
			}
		}
		if len(changed) > 12 && !strings.HasPrefix(file, "tools/") && file != "go.sum" {
			t.Errorf("a change of %s selects %q, which is more than it can break", file, changed)
		}
		git("checkout", "--quiet", file)
	}
}

// TestPartsImports checks that a part must name what its tests and the packages that it names import, unless each agent
// imports it as well.
func TestPartsImports(t *testing.T) {
	t.Parallel()
	const module = "github.com/lenonet/leno"
	before, after, _ := strings.Cut(read(t, "../../tools/parts"), "\ntable() {\n")
	_, after, _ = strings.Cut(after, "\nEND\n}\n")
	for name, tt := range map[string]struct {
		files   string // that the part names
		missing string
	}{
		"each package":              {files: "registry/store registry/claim"},
		"a directory above":         {files: "registry"},
		"without a dependency":      {files: "registry/store", missing: "registry/claim"},
		"without what a test uses":  {files: "registry/claim", missing: "registry/store"},
		"only files of a package":   {files: "registry/store/*.go"},
		"one file and what it uses": {files: "registry/store command/copy.go registry/claim", missing: "registry/transfer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			imports := func(packages ...string) string {
				text := "package p\n"
				for _, p := range packages {
					text += fmt.Sprintf("import _ %q\n", module+"/"+p)
				}
				return text
			}
			table := "\ntable() {\ncat <<'END'\nstores | " + tt.files + " | test ./e2e/kubernetes\nEND\n}\n"
			for path, text := range map[string]string{
				"go.mod":                     "module " + module + "\n",
				"tools/parts":                before + table + after,
				"api/api.go":                 imports(),
				"agent/network/network.go":   imports("api"),
				"command/copy.go":            imports("registry/transfer"),
				"command/other.go":           imports("registry/other"),
				"registry/claim/claim.go":    imports(),
				"registry/store/store.go":    imports("api", "registry/claim"),
				"e2e/kubernetes/k8s_test.go": imports("api", "registry/store"),
			} {
				write(t, filepath.Join(dir, path), text)
			}
			cmd := exec.Command("bash", "-c", `git init --quiet && git add . && bash tools/parts check`)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			want := ""
			if tt.missing != "" {
				want = "parts: the row of stores must name " + tt.missing + ", which what it names, or a test, imports\n"
			}
			if string(out) != want || (err == nil) != (want == "") {
				t.Errorf("%v: %q, want %q", err, out, want)
			}
		})
	}
}

// TestDocumentationLimit checks that the pages of the documentation have at most 60,000 words together.
func TestDocumentationLimit(t *testing.T) {
	t.Parallel()
	for words, want := range map[int]string{60000: "", 60001: "website/content/docs has 60001 words, 1 too many"} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "tools/limits"), read(t, "../../tools/limits"))
		write(t, filepath.Join(dir, "p/p.go"), "package p\n")
		write(t, filepath.Join(dir, "website/content/docs/a.mdx"), "one\n")
		write(t, filepath.Join(dir, "website/content/docs/guides/b.mdx"), strings.Repeat("word ", words-1))
		cmd := exec.Command("bash", "-c", "git init --quiet && bash tools/limits")
		cmd.Dir = dir
		// It also complains that no package here is large enough for its exception.
		out, _ := cmd.CombinedOutput()
		if got := strings.Contains(string(out), "website/content/docs"); got != (want != "") || !strings.Contains(string(out), want) {
			t.Errorf("%d words: %s", words, out)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := programs.Write(path, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// read returns the text of a file, "" if there is none.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}
