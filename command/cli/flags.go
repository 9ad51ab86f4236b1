package cli

import (
	"errors"
	"flag"
	"strings"

	"github.com/lenonet/leno/api"
)

// Values of -format.
const (
	FormatTable = "table"
	FormatJSON  = "json"
)

// FormatFlag is -format.
type FormatFlag struct {
	meta    Meta
	value   string
	json    bool
	noColor bool
}

func NewFormatFlag(m Meta) *FormatFlag { return &FormatFlag{meta: m} }

// Register declares -format and -no-color.
func (f *FormatFlag) Register(fs *flag.FlagSet) {
	fs.BoolVar(&f.noColor, "no-color", false,
		"print no colours; they are used on a terminal only, and never with NO_COLOR or TERM=dumb")
	fs.StringVar(&f.value, "format", "", "output `format`, table or json; LENO_FORMAT, default table")
	fs.BoolVar(&f.json, "json", false, "the same as -format=json")
}

// JSON reports whether JSON is wanted.
func (f *FormatFlag) JSON() (bool, error) {
	name, value := "-format", f.value
	if f.json {
		if value != "" && value != FormatJSON {
			return false, UsageErrorf("-json and -format=%s cannot be used together", value)
		}
		return true, nil
	}
	if value == "" {
		name, value = "LENO_FORMAT", f.meta.Getenv("LENO_FORMAT")
	}
	switch value {
	case "", FormatTable:
		return false, nil
	case FormatJSON:
		return true, nil
	}
	return false, UsageErrorf("%s: %q is neither %s nor %s", name, value, FormatTable, FormatJSON)
}

// ListFlag is a flag that can be given several times.
type ListFlag []string

func (l *ListFlag) String() string { return strings.Join(*l, ",") }

func (l *ListFlag) Set(value string) error {
	if value == "" {
		return errors.New("is empty")
	}
	*l = append(*l, value)
	return nil
}

// IsBool reports whether a flag needs no value.
func IsBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// IsGiven reports whether the flag of that name was given on the command line.
func IsGiven(fs *flag.FlagSet, name string) bool {
	given := false
	fs.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// LogLevelUsage returns the usage text of -log-level, which also accepts upper case.
func LogLevelUsage() string {
	levels := api.LogLevels()
	last := len(levels) - 1
	return "`level`: " + strings.Join(levels[:last], ", ") + " or " + levels[last]
}

// flagName returns the name and value in "-name", "--name" and "-name=value"; "" if the word is
// not a flag.
func flagName(word string) (name, value string, hasValue bool) {
	trimmed := strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-")
	if trimmed == word || trimmed == "" {
		return "", "", false
	}
	return strings.Cut(trimmed, "=")
}
