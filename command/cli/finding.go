package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/lenonet/leno/api"
)

// WriteFinding prints the parts of a finding that is not ok.
func WriteFinding(w io.Writer, f api.Finding) {
	colours := map[string]string{api.FindingFault: api.Critical, api.FindingWarning: api.Warning}
	title := strings.ToUpper(f.Status) + " " + f.Check
	if f.Network != "" {
		title += ", network " + f.Network
	}
	if f.Peer != "" {
		title += ", host " + f.Peer
	}
	fmt.Fprintln(w)
	for _, line := range Wrap(EscapeLine(title), Width) {
		fmt.Fprintln(w, Paint(w, colours[f.Status], line))
	}
	for _, part := range []Pair{{"tried", f.Tried}, {"saw", f.Saw}, {"do", f.Do}, {"docs", f.Docs}} {
		if part[1] == "" {
			continue
		}
		lead := fmt.Sprintf("  %-7s", part[0])
		for _, line := range Wrap(EscapeLine(part[1]), Width-len(lead)) {
			fmt.Fprintln(w, lead+line)
			lead = strings.Repeat(" ", len(lead))
		}
	}
}
