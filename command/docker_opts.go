package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/posener/complete"

	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/dockeropts"
)

const formatEnv = "env"

// dockerOpts is `leno docker-opts`.
type dockerOpts struct {
	meta cli.Meta
	host dockerHost

	format, key, to string
	create          bool
}

func dockerOptsSpec(m cli.Meta) cli.Spec {
	o := &dockerOpts{meta: m, host: dockerHost{agent: cli.NewAgentFlags(m)}}
	return cli.Spec{
		Name:     "docker-opts",
		Synopsis: "Print the Docker options for this host's subnets",
		Help: `
Prints the options that make dockerd put docker0 into a network, and the
command that creates a Docker network for each further network. The options
match the installed version of Docker, or the version that you give. The agent
does not have to run; only its subnet file is needed.

  Options for dockerd:
    $ leno docker-opts

  An environment file for docker.service, whose ExecStart uses $DOCKER_OPTS:
    $ leno docker-opts -format=env -write=/run/leno-docker.env

  The same in daemon.json; other settings in that file are kept:
    $ leno docker-opts -format=json -write=/etc/docker/daemon.json

  docker0 in network default, and a Docker network leno-blue in network blue:
    $ leno docker-opts -network=default -network=blue

  docker0 unchanged, and a Docker network leno-default in network default:
    $ leno docker-opts -network=default -create`,
		Flags: o.flags,
		Run:   func(ctx context.Context, _ []string) error { return o.run(ctx) },
		Values: complete.Flags{
			"-subnet-file":     complete.PredictFiles("*.env"),
			"-format":          complete.PredictSet(cli.FormatTable, formatEnv, cli.FormatJSON),
			"-docker-firewall": complete.PredictSet("iptables", "nftables"),
		},
	}
}

func (o *dockerOpts) flags(fs *flag.FlagSet) {
	o.host.flags(fs)
	fs.BoolVar(&o.create, "create", false, "leave docker0 unchanged: create a Docker network for the first network, too")
	fs.StringVar(&o.format, "format", "",
		"output `format`: table, env (an environment file) or json (daemon.json); LENO_FORMAT, default table")
	fs.StringVar(&o.key, "key", "DOCKER_OPTS", "`name` of the variable with all options, for -format=env")
	fs.StringVar(&o.to, "write", "", "`file` to replace atomically, instead of printing; for -format=env and json")
}

func (o *dockerOpts) run(ctx context.Context) error {
	if o.format == "" {
		o.format = o.meta.Getenv("LENO_FORMAT")
	}
	switch o.format {
	case "":
		o.format = cli.FormatTable
	case cli.FormatTable, formatEnv, cli.FormatJSON:
	default:
		return cli.WrongValue("format", o.format,
			fmt.Sprintf("-format: %q is none of %s, %s and %s", o.format, cli.FormatTable, formatEnv, cli.FormatJSON),
			cli.FormatTable, formatEnv, cli.FormatJSON)
	}
	switch {
	case len(o.host.networks) > 0 && len(o.host.files) > 0:
		return cli.UsageErrorWithFix(cli.DropFlags("subnet-file"), "-network and -subnet-file exclude each other")
	case o.format != cli.FormatTable && (o.create || len(o.host.networks)+len(o.host.files) > 1):
		return cli.UsageErrorWithFix(cli.DropFlags("format", "write"),
			"-format=%s is about docker0, hence about one network; leave it out for the commands that make Docker networks",
			o.format)
	case o.format == cli.FormatTable && o.to != "":
		return cli.UsageErrorWithFix(cli.SetFlag("format", formatEnv), "-write takes -format=%s or -format=%s", formatEnv,
			cli.FormatJSON)
	case !isVariable(o.key):
		return cli.UsageErrorWithFix(cli.DropFlags("key"), "-key: %q is not the name of a variable", o.key)
	}
	// An environment file is written before Docker starts, when Docker's socket accepts questions and nothing answers.
	engine, err := o.host.engine(ctx, o.format != formatEnv)
	if err != nil {
		return err
	}
	networks, err := o.host.read(ctx)
	if err != nil {
		return err
	}
	if o.format == cli.FormatTable {
		o.print(o.meta.Stdout, engine, networks)
		return nil
	}
	return o.file(dockeropts.ForDocker0(engine, networks[0]), networks[0].Name)
}

// isVariable reports whether a shell accepts the name.
func isVariable(name string) bool {
	return name != "" && strings.Trim(name,
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == "" && (name[0] < '0' || name[0] > '9')
}

// print prints the options for people, who can paste them into a shell.
func (o *dockerOpts) print(w io.Writer, e dockeropts.Engine, networks []dockeropts.Network) {
	var notes []string
	for i, n := range networks {
		if i > 0 {
			fmt.Fprintln(w)
		}
		var more []string
		if i == 0 && !o.create {
			d := dockeropts.ForDocker0(e, n)
			writeComment(w, fmt.Sprintf("docker0 in network %s, for %s: options of dockerd", n.Name, engineName(e)))
			fmt.Fprint(w, dockeropts.Lines(strings.Join(append(d.Environment, "dockerd"), " "), d.Flags(), cli.Width))
			more = d.Notes
		} else {
			args, of := dockeropts.Create(e, n)
			writeComment(w, fmt.Sprintf("A Docker network in network %s, for %s: to be made once", n.Name, engineName(e)))
			fmt.Fprint(w, dockeropts.Lines("docker network create", args, cli.Width))
			more = of
		}
		notes = append(notes, more...)
	}
	for _, note := range notes {
		fmt.Fprintln(w)
		writeComment(w, note)
	}
}

func engineName(e dockeropts.Engine) string {
	name := "an unknown version of Docker"
	if e.Version != (dockeropts.Version{}) {
		name = "Docker " + e.Version.String()
	}
	if e.NFTables {
		name += " with nftables"
	}
	return name
}

// writeComment prints text that shells and environment files ignore.
func writeComment(w io.Writer, text string) {
	for _, line := range cli.Wrap(cli.EscapeLine(text), cli.Width-2) {
		fmt.Fprintln(w, "# "+line)
	}
}

// file prints or writes the machine-readable formats.
func (o *dockerOpts) file(d dockeropts.Daemon, network string) error {
	var old []byte
	if o.to != "" {
		var err error
		if old, err = os.ReadFile(o.to); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	var out strings.Builder
	var err error
	if o.format == formatEnv {
		writeEnvironment(&out, d, network, o.key)
	} else {
		var content map[string]any
		if content, err = d.Merge(old); err != nil {
			return fmt.Errorf("%s: %w; it is left as it is", o.to, err)
		}
		if err := cli.WriteJSON(&out, content); err != nil {
			return err
		}
	}
	text := out.String()
	for _, note := range d.Notes {
		if o.format == cli.FormatJSON {
			writeComment(o.meta.Stderr, note) // JSON has no comments
		}
	}
	if o.to == "" {
		_, err = io.WriteString(o.meta.Stdout, text)
		return err
	}
	if string(old) == text {
		fmt.Fprintf(o.meta.Stdout, "%s is up to date.\n", o.to)
		return nil
	}
	if err := dockeropts.ReplaceFile(o.to, []byte(text)); err != nil {
		return err
	}
	fmt.Fprintf(o.meta.Stdout, "Wrote %s.\n", o.to)
	return nil
}

// writeEnvironment writes an environment file for systemd and shells.
func writeEnvironment(w io.Writer, d dockeropts.Daemon, network, key string) {
	writeComment(w, "docker0 in network "+network+", by `leno docker-opts -format=env`")
	for _, note := range d.Notes {
		writeComment(w, note)
	}
	for _, line := range d.Variables(key) {
		fmt.Fprintln(w, line)
	}
}
