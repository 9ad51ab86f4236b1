package cli

import (
	"context"
	"flag"
	"io"
)

// A Session is shared by commands that print the agent's data: how to reach the agent, and the
// output format.
type Session struct {
	Meta   Meta
	Agent  *AgentFlags
	Format *FormatFlag
}

func NewSession(m Meta) *Session {
	return &Session{Meta: m, Agent: NewAgentFlags(m), Format: NewFormatFlag(m)}
}

func (s *Session) Register(fs *flag.FlagSet) {
	s.Agent.Register(fs)
	s.Format.Register(fs)
}

// Call runs fn with a client. It rejects a wrong -format before anything is done.
func (s *Session) Call(ctx context.Context, fn Call) error {
	if _, err := s.Format.JSON(); err != nil {
		return err
	}
	return s.Agent.Call(ctx, fn)
}

// Print prints v as JSON, or what text writes.
func (s *Session) Print(v any, text func(io.Writer)) error {
	asJSON, err := s.Format.JSON()
	switch {
	case err != nil:
		return err
	case asJSON:
		return WriteJSON(s.Meta.Stdout, v)
	}
	text(s.output())
	return nil
}

// output returns standard output, in colours if they are shown.
func (s *Session) output() io.Writer {
	if s.Meta.hasColours() && !s.Format.noColor {
		return colourWriter{s.Meta.Stdout}
	}
	return s.Meta.Stdout
}

// CombineFlags returns a function that declares the flags of several parts of a command.
func CombineFlags(parts ...func(*flag.FlagSet)) func(*flag.FlagSet) {
	return func(fs *flag.FlagSet) {
		for _, p := range parts {
			p(fs)
		}
	}
}
