package hello

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lenonet/leno/api"
)

const (
	// version is the first byte of each message. Messages of other versions are ignored.
	version = 1

	headerLen  = 32
	maxSummary = 1000 // bytes
	maxMessage = headerLen + maxSummary

	// Limits of what a summary says. Longer texts and lists are cut, by the sender and by the receiver.
	maxWord   = 64  // bytes
	MaxReason = 200 // bytes
	MaxNamed  = 10  // hosts that a list names
)

// Bits of the second byte.
const (
	flagAsks    = 1 << iota // the receiver is to answer
	flagCurrent             // the receiver has the sender's present summary, without or with this message
)

// message is the only kind of message. All numbers are big-endian:
//
//	0   version     1 byte
//	1   flags       1 byte
//	2   pause       2 bytes, seconds
//	4   seq         4 bytes
//	8   nonce       8 bytes
//	16  echo        8 bytes
//	24  last        4 bytes
//	28  received    4 bytes
//	32  summary     JSON, at most 1,000 bytes; may be empty
type message struct {
	asks    bool
	current bool          // see flagCurrent
	pause   time.Duration // within which the sender asks again: one that lies hides only its own silence
	seq     uint32        // counts the sender's messages to the receiver, from 1
	nonce   uint64        // of the sender's process, never 0
	echo    uint64        // the receiver's nonce, 0 if the sender has received nothing of it recently

	// What the sender has received of the process that echo names: the highest sequence number, and bit i for last-i.
	last, received uint32

	summary []byte
}

var errMessage = errors.New("not a message of this version")

// marshal returns the message in its wire format.
func (m message) marshal() []byte {
	out := make([]byte, headerLen, headerLen+len(m.summary))
	out[0] = version
	if m.asks {
		out[1] |= flagAsks
	}
	if m.current {
		out[1] |= flagCurrent
	}
	binary.BigEndian.PutUint16(out[2:], uint16(min(m.pause/time.Second, 1<<16-1)))
	binary.BigEndian.PutUint32(out[4:], m.seq)
	binary.BigEndian.PutUint64(out[8:], m.nonce)
	binary.BigEndian.PutUint64(out[16:], m.echo)
	binary.BigEndian.PutUint32(out[24:], m.last)
	binary.BigEndian.PutUint32(out[28:], m.received)
	return append(out, m.summary...)
}

// parse is the reverse of marshal. It does not look into the summary.
func parse(b []byte) (message, error) {
	if len(b) < headerLen || len(b) > maxMessage || b[0] != version {
		return message{}, errMessage
	}
	m := message{
		asks:     b[1]&flagAsks != 0,
		current:  b[1]&flagCurrent != 0,
		pause:    time.Duration(binary.BigEndian.Uint16(b[2:])) * time.Second,
		seq:      binary.BigEndian.Uint32(b[4:]),
		nonce:    binary.BigEndian.Uint64(b[8:]),
		echo:     binary.BigEndian.Uint64(b[16:]),
		last:     binary.BigEndian.Uint32(b[24:]),
		received: binary.BigEndian.Uint32(b[28:]),
		summary:  b[headerLen:],
	}
	if m.seq == 0 || m.nonce == 0 || m.echo == 0 && (m.last != 0 || m.received != 0) {
		return message{}, errMessage
	}
	return m, nil
}

// wireSummary is a summary without the time at which a receiver got it.
type wireSummary struct {
	api.HostSummary
	At *time.Time `json:"at,omitempty"`
}

// marshalSummary returns a summary as it is sent, cut to maxSummary bytes.
func marshalSummary(s api.HostSummary) []byte {
	s = cut(s)
	for {
		out, err := json.Marshal(wireSummary{HostSummary: s})
		switch {
		case err == nil && len(out) <= maxSummary:
			return out
		case len(s.Lossy) > 0:
			s.Lossy = s.Lossy[:len(s.Lossy)-1]
		case len(s.Short) > 0:
			s.Short = s.Short[:len(s.Short)-1]
		case len(s.Lost) > 0:
			s.Lost = s.Lost[:len(s.Lost)-1]
		case s.Reason != "":
			s.Reason = ""
		default:
			return nil
		}
	}
}

// parseSummary reads what another host has sent. Members that it does not know are ignored.
func parseSummary(b []byte) (api.HostSummary, error) {
	var w wireSummary
	err := json.Unmarshal(b, &w)
	w.HostSummary.At = time.Time{}
	return cut(w.HostSummary), err
}

// cut returns a summary within its limits: texts may come from another host and are shown to people.
func cut(s api.HostSummary) api.HostSummary {
	s.Version, s.Backend, s.PublicIP = text(s.Version, maxWord), text(s.Backend, maxWord), text(s.PublicIP, maxWord)
	if !slices.Contains([]string{api.Passing, api.Warning, api.Critical}, s.Health) {
		s.Health = ""
	}
	s.Reason = text(s.Reason, MaxReason)
	s.MTU, s.Peers = max(s.MTU, 0), max(s.Peers, 0)
	s.Reached = min(max(s.Reached, 0), s.Peers)
	s.Impaired = min(max(s.Impaired, 0), s.Reached)
	s.Lost, s.Short = cutNames(s.Lost, MaxNamed), cutNames(s.Short, MaxNamed)
	s.Lossy = cutNames(s.Lossy, MaxNamed-len(s.Short))
	return s
}

// CountPaths sets what a summary says of the paths to peers that hold a lease. states yields the name of each of them
// and the state of its path, for example api.PathReached, or "" for a path that was not tested. Names beyond the limits
// of a summary are left out.
func CountPaths(s *api.HostSummary, states iter.Seq2[string, string]) {
	names := map[string][]string{} // by state
	s.Peers = 0
	for node, state := range states {
		s.Peers++
		names[state] = append(names[state], node)
	}
	for _, list := range names {
		slices.Sort(list)
	}
	s.Lost, s.Short, s.Lossy = names[api.PathLost], names[api.PathShort], names[api.PathLossy]
	s.Impaired = len(s.Short) + len(s.Lossy)
	s.Reached = s.Impaired + len(names[api.PathReached])
	*s = cut(*s)
}

func cutNames(all []string, most int) (out []string) {
	for _, name := range all[:min(len(all), most)] {
		out = append(out, text(name, maxWord))
	}
	return out
}

// text returns the printable characters of s, at most limit bytes of them.
func text(s string, limit int) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s[:min(len(s), limit)])
}
