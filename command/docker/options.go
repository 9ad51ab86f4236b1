// Package docker contains the command docker-opts. What it prints is computed by package dockeropts.
package docker

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/posener/complete"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/dockeropts"
)

const formatEnv = "env"

// options is `leno docker-opts`.
type options struct {
	meta cli.Meta
	host host

	format, key, to string
	create, json    bool
}

// Spec returns the command docker-opts.
func Spec(m cli.Meta) cli.Spec {
	o := &options{meta: m, host: host{agent: cli.NewAgentFlags(m)}}
	return cli.Spec{
		Name:     "docker-opts",
		Synopsis: "Print the Docker options for this host's subnets",
		Help: `
Prints the options that make dockerd put docker0 into a network, and the
command that creates a Docker network for each further network, for the
installed version of Docker or the one that you give. Needs only the subnet
file, not the agent.

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

func (o *options) flags(fs *flag.FlagSet) {
	o.host.flags(fs)
	fs.BoolVar(&o.create, "create", false, "leave docker0 unchanged: create a Docker network for the first network, too")
	fs.StringVar(&o.format, "format", "",
		"output `format`: table, env (an environment file) or json (daemon.json); LENO_FORMAT, default table")
	fs.BoolVar(&o.json, "json", false, "the same as -format=json")
	fs.StringVar(&o.key, "key", "DOCKER_OPTS", "`name` of the variable with all options, for -format=env")
	fs.StringVar(&o.to, "write", "", "`file` to replace atomically, instead of printing; for -format=env and json")
}

func (o *options) run(ctx context.Context) error {
	if o.json {
		if o.format != "" && o.format != cli.FormatJSON {
			return cli.UsageErrorf("-json and -format=%s cannot be used together", o.format)
		}
		o.format = cli.FormatJSON
	}
	o.format = cmp.Or(o.format, o.meta.Getenv("LENO_FORMAT"), cli.FormatTable)
	if !slices.Contains([]string{cli.FormatTable, formatEnv, cli.FormatJSON}, o.format) {
		return cli.UsageErrorf("-format: %q is none of %s, %s and %s", o.format, cli.FormatTable, formatEnv, cli.FormatJSON)
	}
	repeated, isRepeated := o.host.repeated()
	switch {
	case len(o.host.networks) > 0 && len(o.host.files) > 0:
		return cli.UsageErrorf("-network and -subnet-file cannot be used together")
	case isRepeated:
		return cli.UsageErrorf("network %s is given twice", repeated)
	case o.format != cli.FormatTable && (o.create || len(o.host.networks)+len(o.host.files) > 1):
		return cli.UsageErrorf("-format=%s is about docker0, hence about one network; "+
			"leave it out for the commands that make Docker networks", o.format)
	case o.format == cli.FormatTable && o.to != "":
		return cli.UsageErrorf("-write needs -format=%s or -format=%s", formatEnv, cli.FormatJSON)
	case !variableName.MatchString(o.key):
		return cli.UsageErrorf("-key: %q is not the name of a variable", o.key)
	}
	return o.output(ctx)
}

// output prints or writes the options in the format that is asked for.
func (o *options) output(ctx context.Context) error {
	isTarget := o.format == cli.FormatJSON && o.to != ""
	path := o.host.config
	if isTarget {
		path = o.to
	}
	old, config, unread := readConfig(path, isTarget)
	if unread != nil && (isTarget || o.format == formatEnv) {
		return unread
	}
	// An environment file is written before Docker starts, when Docker's socket accepts questions and nothing answers.
	engine, err := o.host.engine(ctx, config, o.format != formatEnv)
	if err != nil {
		return err
	}
	networks, err := o.host.read(ctx)
	if err != nil {
		return err
	}
	d := dockeropts.ForDocker0(engine, networks[0])
	if isTarget {
		all := d.Merge(config, engine, networks[0])
		if err := all.Check(networks[0]); err != nil {
			return fmt.Errorf("%s was not changed: %w", path, err)
		}
		return o.writeJSON(ctx, d, old, all)
	}
	beside, err := d.Beside(config, networks[0])
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	switch {
	case o.format == cli.FormatJSON:
		return o.writeJSON(ctx, d, nil, d.Merge(nil, engine, networks[0]))
	case o.format == formatEnv && err != nil:
		return err
	case o.format == formatEnv:
		return o.writeEnv(beside, networks[0].Name)
	}
	o.print(o.meta.Stdout, engine, networks, errors.Join(unread, err))
	return nil
}

// variableName matches the names of variables that a shell accepts.
var variableName = regexp.MustCompile(`^[A-Za-z_]\w*$`)

// print prints the options for people, who can paste them into a shell. conflict is why dockerd would not start with
// those of docker0.
func (o *options) print(w io.Writer, e dockeropts.Engine, networks []dockeropts.Network, conflict error) {
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
			if conflict != nil {
				more = append(more, conflict.Error())
			}
		} else {
			args, of := dockeropts.Create(e, n)
			writeComment(w, fmt.Sprintf("A Docker network in network %s, for %s: create it once", n.Name, engineName(e)))
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

// writeJSON prints or writes a daemon.json with all its settings, whose content before is old.
func (o *options) writeJSON(ctx context.Context, d dockeropts.Daemon, old []byte, all dockeropts.Config) error {
	var out strings.Builder
	if err := cli.WriteJSON(&out, all); err != nil {
		return err
	}
	for _, note := range d.Notes {
		writeComment(o.meta.Stderr, note) // JSON has no comments
	}
	if o.to != "" && string(old) != out.String() {
		if err := dockeropts.Validate(ctx, o.to, []byte(out.String())); err != nil {
			return fmt.Errorf("%s was not changed: %w", o.to, err)
		}
	}
	return o.write(old, out.String())
}

// writeEnv prints or writes an environment file.
func (o *options) writeEnv(d dockeropts.Daemon, network string) error {
	var old []byte
	if o.to != "" {
		var err error
		if old, err = readNamedFile(o.to); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	var out strings.Builder
	writeEnvironment(&out, d, network, o.key)
	return o.write(old, out.String())
}

// write prints the text, or replaces the content of the file, which is old.
func (o *options) write(old []byte, text string) error {
	if o.to == "" {
		_, err := io.WriteString(o.meta.Stdout, text)
		return err
	}
	if string(old) == text {
		fmt.Fprintf(o.meta.Stdout, "%s is up to date.\n", o.to)
		return nil
	}
	if err := state.ReplaceFile(o.to, []byte(text)); err != nil {
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
