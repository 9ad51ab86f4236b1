package main

import (
	"flag"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/command"
	"github.com/lenonet/leno/command/cli"
)

// commandPages returns the page of each command, with its usage line, help, flags, examples, and the golden file of its
// output, by path below the folder of commands.
func (s *source) commandPages() (map[string]string, error) {
	out := map[string]string{}
	for name := range s.commands {
		page, err := s.commandPage(name)
		if err != nil {
			return nil, err
		}
		out[s.pagePath(name)] = page
	}
	return out, nil
}

// pagePath returns the path of a command's page: "network/apply.mdx".
func (s *source) pagePath(name string) string {
	if len(s.commands.Subcommands(name)) > 0 {
		name += "/index"
	}
	return strings.ReplaceAll(name, " ", "/") + ".mdx"
}

func (s *source) commandPage(name string) (string, error) {
	c, err := s.commands[name]()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	words := strings.Fields(name)
	fmt.Fprintf(&b, "---\ntitle: leno %s\ndescription: %s.\nsidebar: { label: %s }\n---\n\n", name, c.Synopsis(), words[len(words)-1])
	leaf, ok := c.(*cli.Command)
	switch {
	case ok:
		return b.String() + s.leafPage(leaf, strings.Repeat("../", strings.Count(s.pagePath(name), "/"))), nil
	case len(s.commands.Subcommands(name)) > 0:
		err = s.groupPage(&b, name)
	default: // another kind of command, whose help contains everything
		fenced(&b, "text", c.Help())
	}
	return b.String(), err
}

// generatedBy marks the code blocks that this program writes.
const generatedBy = ` generated="make docs"`

// fenced writes a code block.
func fenced(b *strings.Builder, kind, text string) {
	fmt.Fprintf(b, "```%s%s\n%s\n```\n", kind, generatedBy, strings.TrimRight(text, "\n"))
}

func (s *source) groupPage(b *strings.Builder, name string) error {
	fenced(b, "text", "leno "+name+" SUBCOMMAND [options] [arguments]")
	b.WriteString("\n| command | what it does |\n|---|---|\n")
	for _, sub := range s.commands.Subcommands(name) {
		c, err := s.commands[name+" "+sub]()
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "| [`leno %s %s`](%s.mdx) | %s |\n", name, sub, sub, lowered(s.commandProse(c.Synopsis())))
	}
	return nil
}

// leafPage returns the content of the page of one command; up is the relative path to the folder of all pages.
func (s *source) leafPage(c *cli.Command, up string) string {
	var b strings.Builder
	text, shown := s.parts(c.Spec.Help)
	b.WriteString(text)
	b.WriteString("\nUsage: `" + strings.TrimPrefix(c.UsageLine(), "Usage: ") + "`\n")
	s.optionList(&b, c)
	if shown != "" {
		b.WriteString("\n## Examples\n\n")
		fenced(&b, "sh", shown)
	}
	golden, err := s.file("command/testdata/" + strings.ReplaceAll(c.Spec.Name, " ", "-") + ".golden")
	if output, good := strings.CutSuffix(golden, "-- exit 0 --\n"); err == nil && good && !strings.Contains(output, "-- stderr --") {
		b.WriteString("\n## Output\n\n")
		fenced(&b, "console", strings.ReplaceAll(output, "=DIR/", "=/run/leno/"))
	}
	see := []string{fmt.Sprintf("[exit codes](%sindex.mdx#output-and-exit-codes)", up)}
	if names := commonNames(c); len(names) > 0 {
		see = append([]string{fmt.Sprintf("[common options](%sindex.mdx#flags-and-environment)%s", up, names)}, see...)
	}
	for _, o := range command.Outputs() {
		if name, flag, _ := strings.Cut(o.Command, " -"); name == c.Spec.Name {
			with := "JSON output"
			if flag != "" {
				with = "JSON output of `-" + flag + "`"
			}
			see = append(see, with+" "+jsonLink(o, up))
		}
	}
	b.WriteString("\nSee also " + strings.Join(see, ", "))
	b.WriteString(".\n")
	return b.String()
}

// parts returns the paragraphs of a help text, and its examples in shell syntax, with their
// explanations after a #.
func (s *source) parts(help string) (text, shown string) {
	var prose, sh strings.Builder
	for paragraph := range strings.SplitSeq(strings.TrimSpace(help), "\n\n") {
		if !strings.HasPrefix(paragraph, "  ") {
			prose.WriteString(s.commandProse(paragraph) + "\n\n")
			continue
		}
		for line := range strings.SplitSeq(strings.Trim(paragraph, "\n"), "\n") {
			line = strings.TrimSpace(line)
			example, ok := strings.CutPrefix(line, "$ ")
			switch before := sh.String(); {
			case ok:
				example, said, found := strings.Cut(example, "  ")
				if found {
					example += "  # " + strings.TrimSpace(said)
				}
				sh.WriteString(example + "\n")
			case strings.Contains(before[strings.LastIndex(strings.TrimSuffix(before, "\n"), "\n")+1:], "  # "): // the explanation continues
				sh.Reset()
				sh.WriteString(strings.TrimSuffix(before, "\n") + " " + line + "\n")
			default:
				sh.WriteString("# " + line + "\n")
			}
		}
	}
	return strings.TrimRight(prose.String(), "\n") + "\n", sh.String()
}

var codeWords = regexp.MustCompile(`(^|[\s(])(-[a-z][a-z0-9-]*(?:=[A-Za-z0-9]+)?|(?:LENO|NO)_[A-Z_]+|TERM=dumb|/[a-z][a-z./_-]*[a-z])`)

// commandProse converts the plain text of a help for a page: commands, flags, variables and paths become code, and MDX
// syntax is escaped.
func (s *source) commandProse(text string) string {
	text = strings.NewReplacer("<", `\<`, "{", `\{`, "*", `\*`, "\n- ", "\n\\- ").Replace(text)
	text = codeWords.ReplaceAllString(text, "$1`$2`")
	names := strings.Join(slices.Sorted(maps.Keys(s.commands)), "|")
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

func (s *source) newOption(c *cli.Command, f *flag.Flag) option {
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
	o.means = s.commandProse(text)
	for _, setting := range config.Settings() {
		if setting.FlagName() == f.Name && setting.Flag != "" && slices.Contains([]string{"agent", "cleanup"}, c.Spec.Name) {
			o.env = setting.Variable()
			o.means += "; overrides [`" + setting.Name + "`](../configuration.mdx)"
		}
	}
	return o
}

// optionList writes the flags of a command, without those that the overview explains.
func (s *source) optionList(b *strings.Builder, c *cli.Command) {
	own, _ := c.Options()
	if len(own) > 0 {
		b.WriteString("\n## Options\n\n")
	}
	for _, f := range own {
		o := s.newOption(c, f)
		fmt.Fprintf(b, "- `%s`", o.name)
		if o.env != "" {
			b.WriteString(" (" + optionEnv.ReplaceAllString(o.env, "`$0`") + ")")
		}
		if o.standard != "" {
			o.means += "; default " + o.standard
		}
		fmt.Fprintf(b, ": %s\n", o.means)
	}
}

// commonNames returns which options of the overview a command has: " of the agent" stands for all of them except those for
// the output, which the overview explains.
func commonNames(c *cli.Command) string {
	_, common := c.Options()
	var names []string
	for _, f := range common {
		if f.Name == "address" {
			return " of the agent"
		}
		names = append(names, "`-"+f.Name+"`")
	}
	if len(names) == 0 {
		return ""
	}
	return " " + strings.Join(names, ", ")
}

func lowered(text string) string { return strings.ToLower(text[:1]) + text[1:] }
