package command

import (
	"context"
	"flag"
	"io"

	"github.com/lenonet/leno/api"
)

// session is shared by commands that print the agent's data: how to reach the agent, and the
// output format.
type session struct {
	meta   Meta
	agent  agentFlags
	format formatFlag
}

func newSession(m Meta) *session {
	return &session{meta: m, agent: agentFlags{meta: m}, format: formatFlag{meta: m}}
}

func (s *session) flags(fs *flag.FlagSet) {
	s.agent.register(fs)
	s.format.register(fs)
}

// call runs fn with a client. It rejects a wrong -format before anything is done.
func (s *session) call(ctx context.Context, fn func(context.Context, *api.Client) error) error {
	if _, err := s.format.json(); err != nil {
		return err
	}
	return s.agent.call(ctx, fn)
}

// print prints v as JSON, or what text writes.
func (s *session) print(v any, text func(io.Writer)) error {
	asJSON, err := s.format.json()
	switch {
	case err != nil:
		return err
	case asJSON:
		return printJSON(s.meta.Stdout, v)
	}
	text(s.output())
	return nil
}

// output returns standard output, in colours if they are shown.
func (s *session) output() io.Writer {
	if s.meta.colours() && !s.format.noColor {
		return coloured{s.meta.Stdout}
	}
	return s.meta.Stdout
}

// both returns a function that declares the flags of several parts of a command.
func both(parts ...func(*flag.FlagSet)) func(*flag.FlagSet) {
	return func(fs *flag.FlagSet) {
		for _, p := range parts {
			p(fs)
		}
	}
}
