package command

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/command/cli"
)

// commandPages is the folder of the pages that are generated from the code, next to pages written
// by hand.
const commandPages = docs + "commands/"

// written lists the pages of that folder that are written by hand.
var written = []string{"index.mdx", "json.mdx"}

// TestCommandPages compares the page of each command with its usage line, help, flags and
// examples, and the golden file of its output. With LENO_UPDATE_GOLDEN set it writes the pages.
func TestCommandPages(t *testing.T) {
	wanted := map[string]string{}
	for name := range Commands(cli.Meta{}) {
		wanted[pagePath(name)] = commandPage(t, name)
	}
	var have []string
	err := filepath.WalkDir(commandPages, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			have = append(have, strings.TrimPrefix(path, commandPages))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range have {
		if _, ok := wanted[path]; !ok && !slices.Contains(written, path) {
			t.Errorf("commands/%s is of no command", path)
		}
	}
	for path, page := range wanted {
		if os.Getenv("LENO_UPDATE_GOLDEN") != "" {
			if err := os.MkdirAll(filepath.Dir(commandPages+path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(commandPages+path, []byte(page), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		text, err := os.ReadFile(commandPages + path)
		if err != nil {
			t.Errorf("%v: LENO_UPDATE_GOLDEN=1 writes it", err)
		} else if diff := cmp.Diff(string(text), page); diff != "" {
			t.Errorf("commands/%s (-page +program), LENO_UPDATE_GOLDEN=1 writes it:\n%s", path, diff)
		}
	}
}

// pagePath returns the path of a command's page: "network/apply.mdx".
func pagePath(name string) string {
	if len(Commands(cli.Meta{}).Subcommands(name)) > 0 {
		name += "/index"
	}
	return strings.ReplaceAll(name, " ", "/") + ".mdx"
}

func commandPage(t *testing.T, name string) string {
	t.Helper()
	commands := Commands(cli.Meta{Getenv: func(string) string { return "" }})
	c, err := commands[name]()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	words := strings.Fields(name)
	fmt.Fprintf(&b, "---\ntitle: leno %s\ndescription: %s.\nsidebar: { label: %s }\n---\n\n", name, c.Synopsis(), words[len(words)-1])
	leaf, ok := c.(*cli.Command)
	switch {
	case ok:
		writePage(t, &b, leaf, strings.Repeat("../", strings.Count(pagePath(name), "/")))
	case len(commands.Subcommands(name)) > 0:
		groupPage(t, &b, commands, name)
	default: // another kind of command, whose help contains everything
		fenced(&b, "text", c.Help())
	}
	return b.String()
}

// fenced writes a code block that the tests of this package verify.
func fenced(b *strings.Builder, kind, text string) {
	fmt.Fprintf(b, "```%s generated=\"TestCommandPages\"\n%s\n```\n", kind, strings.TrimRight(text, "\n"))
}

func groupPage(t *testing.T, b *strings.Builder, commands cli.Commands, name string) {
	t.Helper()
	fenced(b, "text", "leno "+name+" SUBCOMMAND [options] [arguments]")
	b.WriteString("\n| command | what it does |\n|---|---|\n")
	for _, sub := range commands.Subcommands(name) {
		c, err := commands[name+" "+sub]()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(b, "| [`leno %s %s`](%s.mdx) | %s |\n", name, sub, sub, lowered(prose(c.Synopsis())))
	}
}

// writePage writes the page of one command; up is the relative path to the folder of all pages.
func writePage(t *testing.T, b *strings.Builder, c *cli.Command, up string) {
	t.Helper()
	text, shown := parts(c.Spec.Help)
	b.WriteString(text)
	b.WriteString("\n## Usage\n\n")
	fenced(b, "text", strings.TrimPrefix(c.UsageLine(), "Usage: "))
	writeOptions(b, c, up)
	if shown != "" {
		b.WriteString("\n## Examples\n\n")
		fenced(b, "sh", shown)
	}
	golden, err := os.ReadFile("testdata/" + strings.ReplaceAll(c.Spec.Name, " ", "-") + ".golden")
	if output, good := strings.CutSuffix(string(golden), "-- exit 0 --\n"); err == nil && good && !strings.Contains(output, "-- stderr --") {
		b.WriteString("\n## What it prints\n\n")
		fenced(b, "console", strings.ReplaceAll(output, "=DIR/", "=/run/leno/"))
	}
	b.WriteString("\n## Exit codes\n\n")
	codes := fmt.Sprintf("%d done, %d failed, %d wrong usage", cli.ExitDone, cli.ExitFailed, cli.ExitUsage)
	if c.Spec.Name == "agent" {
		codes += fmt.Sprintf(", %d a configuration that it cannot start with", cli.ExitConfig)
	}
	fmt.Fprintf(b, "%s. See also [output and exit codes](%sindex.mdx#output-and-exit-codes).\n", codes, up)
	for _, s := range shapes() {
		if s.command == c.Spec.Name {
			fmt.Fprintf(b, "\nWhat `-format=json` prints: [%s](%sjson.mdx#%s).\n", s.command, up, strings.ReplaceAll(s.command, " ", "-"))
		}
	}
}

// parts returns the paragraphs of a help text, and its examples in shell syntax, with their
// explanations after a #.
func parts(help string) (text, shown string) {
	var t, s strings.Builder
	for paragraph := range strings.SplitSeq(strings.TrimSpace(help), "\n\n") {
		if !strings.HasPrefix(paragraph, "  ") {
			t.WriteString(prose(paragraph) + "\n\n")
			continue
		}
		for line := range strings.SplitSeq(strings.Trim(paragraph, "\n"), "\n") {
			line = strings.TrimSpace(line)
			example, ok := strings.CutPrefix(line, "$ ")
			switch before := s.String(); {
			case ok:
				example, said, found := strings.Cut(example, "  ")
				if found {
					example += "  # " + strings.TrimSpace(said)
				}
				s.WriteString(example + "\n")
			case strings.Contains(before[strings.LastIndex(strings.TrimSuffix(before, "\n"), "\n")+1:], "  # "): // the explanation continues
				s.Reset()
				s.WriteString(strings.TrimSuffix(before, "\n") + " " + line + "\n")
			default:
				s.WriteString("# " + line + "\n")
			}
		}
	}
	return strings.TrimRight(t.String(), "\n") + "\n", s.String()
}

var codeWords = regexp.MustCompile(`(^|[\s(])(-[a-z][a-z-]*(?:=[A-Za-z0-9]+)?|(?:LENO|NO)_[A-Z_]+|TERM=dumb|/[a-z][a-z./_-]*[a-z])`)

// prose converts plain text for a page: commands, flags, variables and paths become code, and MDX
// syntax is escaped.
func prose(text string) string {
	text = strings.NewReplacer("<", `\<`, "{", `\{`, "*", `\*`, "\n- ", "\n\\- ").Replace(text)
	text = codeWords.ReplaceAllString(text, "$1`$2`")
	names := strings.Join(slices.Sorted(maps.Keys(Commands(cli.Meta{}))), "|")
	named := regexp.MustCompile("`?\\bleno[ \n](?:" + names + ")\\b`?")
	named.Longest() // matches "lease list" rather than only "lease"
	return named.ReplaceAllStringFunc(text, func(name string) string { return "`" + strings.Trim(strings.ReplaceAll(name, "\n", " "), "`") + "`" })
}

// option is one flag as shown on its page.
type option struct{ name, env, standard, means string }

var (
	optionEnv      = regexp.MustCompile(`\b(?:LENO|CONSUL_HTTP|NO)_[A-Z_]+\b`)
	optionEnvTail  = regexp.MustCompile(`; (?:LENO|CONSUL_HTTP)_[A-Z_]+(?:, (?:LENO|CONSUL_HTTP)_[A-Z_]+)*(, default|$)`)
	optionStandard = regexp.MustCompile(`[;,.] [dD]efault:? (.+)$`)
)

func newOption(c *cli.Command, f *flag.Flag) option {
	_, text := flag.UnquoteUsage(f)
	o := option{name: cli.OptionName(f), env: strings.Join(optionEnv.FindAllString(text, -1), ", "), standard: f.DefValue}
	text = optionEnvTail.ReplaceAllString(text, "$1")
	if m := optionStandard.FindStringSubmatch(text); m != nil {
		o.standard, text = m[1], strings.TrimSuffix(text, m[0])
	}
	if cli.IsBool(f) && o.standard == "false" {
		o.standard = ""
	}
	if o.standard != "" && !strings.Contains(o.standard, " ") {
		o.standard = "`" + o.standard + "`"
	}
	o.means = prose(text)
	for _, setting := range agentOverrides {
		if f.Name == setting.flag && slices.Contains([]string{"agent", "cleanup"}, c.Spec.Name) {
			o.env = "LENO_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
			o.means += "; in place of the option [`" + setting.setting + "`](../configuration.mdx)"
		}
	}
	return o
}

// writeOptions writes the flags of a command, and below them those that it shares with all
// commands that call the agent.
func writeOptions(b *strings.Builder, c *cli.Command, up string) {
	own, common := c.Options()
	table := func(flags []*flag.Flag) {
		b.WriteString("| option | environment | default | meaning |\n|---|---|---|---|\n")
		for _, f := range flags {
			o := newOption(c, f)
			fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", o.name, optionEnv.ReplaceAllString(o.env, "`$0`"), cell(o.standard), cell(o.means))
		}
	}
	if len(own) > 0 {
		b.WriteString("\n## Options\n\n")
		table(own)
	}
	if len(common) > 0 {
		fmt.Fprintf(b, "\n## Options of all commands\n\nMore about them: [flags and environment](%sindex.mdx#flags-and-environment).\n\n", up)
		table(common)
	}
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

func lowered(text string) string { return strings.ToLower(text[:1]) + text[1:] }

// The overview links the page of every command that is not a group.
func TestOverviewLinksEveryCommand(t *testing.T) {
	overview := read(t, commandPages+"index.mdx")
	for _, name := range slices.Sorted(maps.Keys(Commands(cli.Meta{}))) {
		if n := strings.Count(overview, "]("+pagePath(name)+")"); len(Commands(cli.Meta{}).Subcommands(name)) == 0 && n == 0 {
			t.Errorf("commands/index.mdx has no link to %s: its row begins with | [`%s`](%s) |", pagePath(name), name, pagePath(name))
		}
	}
}
