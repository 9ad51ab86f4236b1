package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lenonet/leno/command/cli"
)

// TestCompletionScripts: there is a script for each shell, and those of bash and zsh make it ask leno.
func TestCompletionScripts(t *testing.T) {
	dir := t.TempDir()
	program := "#!/bin/sh\necho asked for \"$COMP_LINE\"\n"
	if err := os.WriteFile(filepath.Join(dir, "leno"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	for shell := range completionScripts {
		got := world{}.run("completion", shell)
		if got.code != cli.ExitDone || got.stderr != "" || got.stdout == "" {
			t.Errorf("%s: %+v", shell, got)
		}
	}
	script := world{}.run("completion", "bash").stdout
	// complete -p prints what the script has set up, as a command that runs the program.
	cmd := exec.Command("bash", "-c", script+`eval set -- $(complete -p leno); COMP_LINE="leno st" "$3" leno st ""`)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "asked for leno st" {
		t.Errorf("bash: %q, %v", out, err)
	}
	script = world{}.run("completion", "zsh").stdout
	cmd = exec.Command("zsh", "-f", "-c", script+"print -r -- $_comps[leno]") // without what the user's files load
	cmd.Env = append(os.Environ(), "HOME="+dir)
	out, err = cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "_bash_complete -o nospace -C leno" {
		t.Errorf("zsh: %q, %v", out, err)
	}
}
