package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Each table of iptables-legacy is one block of memory, which the kernel hands out whole
// (linux/netfilter_ipv4/ip_tables.h, linux/netfilter_ipv6/ip6_tables.h). The kernel does not announce replaced
// tables, so we read them and compare their contents without the counters.
const (
	optionInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	optionEntries = 65 // IPT_SO_GET_ENTRIES, IP6T_SO_GET_ENTRIES

	tableNameLen = 32                 // XT_TABLE_MAXNAMELEN
	infoLen      = 32 + 4*(1+5+5+1+1) // struct ipt_getinfo
	infoSize     = infoLen - 4        // of size, its last field
	entriesHead  = 40                 // struct ipt_get_entries without its table, which is aligned to 8
)

// layout holds the offsets of the relevant fields in an entry, on 64-bit machines.
type layout struct {
	level    int // of getsockopt
	domain   int
	next     int // offset of next_offset, 16 bits
	counters int // offset of counters, 16 bytes
}

func layoutOf(v6 bool) layout {
	if v6 {
		return layout{unix.SOL_IPV6, unix.AF_INET6, 142, 152} // struct ip6t_entry
	}
	return layout{unix.SOL_IP, unix.AF_INET, 90, 96} // struct ipt_entry
}

// Fingerprint returns a number that changes when the rules of the named legacy tables change. All calls to be compared
// must use the same seed.
func Fingerprint(v6 bool, tables []string, seed maphash.Seed) (uint64, error) {
	l := layoutOf(v6)
	var hash maphash.Hash
	hash.SetSeed(seed)
	err := EachLegacy(v6, tables, func(name string, entries []byte) error {
		_, _ = hash.WriteString(name) // never fails
		return l.mask(entries, &hash)
	})
	return hash.Sum64(), err
}

// Stamp returns a number that changes when a rule of the calling thread's network namespace changes, in nf_tables or in
// the legacy tables that this process may list. All calls to be compared must use the same seed. It starts no program.
func Stamp(seed maphash.Seed) (uint64, error) {
	var hash maphash.Hash
	hash.SetSeed(seed)
	generation, err := Generation()
	if err != nil && !IsNFTMissing(err) {
		return 0, err
	}
	maphash.WriteComparable(&hash, generation)
	for _, v6 := range []bool{false, true} {
		number, err := Fingerprint(v6, LegacyTables(v6), seed)
		if err != nil {
			return 0, err
		}
		maphash.WriteComparable(&hash, number)
	}
	return hash.Sum64(), nil
}

// EachLegacy calls f with the entries of each of the named legacy tables. It does not ask for tables that do not exist,
// because asking would create them.
func EachLegacy(v6 bool, tables []string, f func(name string, entries []byte) error) error {
	exist := LegacyTables(v6)
	if !slices.ContainsFunc(exist, func(name string) bool { return slices.Contains(tables, name) }) {
		return nil
	}
	l := layoutOf(v6)
	fd, err := unix.Socket(l.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("look at legacy tables: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written to it
	for _, name := range tables {
		if !slices.Contains(exist, name) {
			continue
		}
		entries, err := l.entries(fd, name)
		if err != nil {
			return fmt.Errorf("look at legacy table %s: %w", name, err)
		}
		if err := f(name, entries); err != nil {
			return err
		}
	}
	return nil
}

// entries reads one table. If a larger one replaces it during the read, that is a transient error.
func (l layout) entries(fd int, name string) ([]byte, error) {
	info := make([]byte, infoLen)
	copy(info, name)
	if err := getsockopt(fd, l.level, optionInfo, info); err != nil {
		return nil, err
	}
	size := binary.NativeEndian.Uint32(info[infoSize:])
	entries := make([]byte, entriesHead+int(size))
	copy(entries, name)
	binary.NativeEndian.PutUint32(entries[tableNameLen:], size)
	if err := getsockopt(fd, l.level, optionEntries, entries); err != nil {
		return nil, err
	}
	return entries[entriesHead:], nil
}

var errLayout = errors.New("entries are not as expected")

// mask hashes entries without their counters.
func (l layout) mask(entries []byte, hash *maphash.Hash) error {
	least := l.counters + 16
	for len(entries) > 0 {
		if len(entries) < least {
			return errLayout
		}
		next := int(binary.NativeEndian.Uint16(entries[l.next:]))
		if next < least || next > len(entries) {
			return errLayout
		}
		_, _ = hash.Write(entries[:l.counters]) // never fails
		_, _ = hash.Write(entries[least:next])
		entries = entries[next:]
	}
	return nil
}

func getsockopt(fd, level, name int, value []byte) error {
	length := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
