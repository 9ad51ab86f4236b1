package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

// packet returns a VXLAN packet with an IPv4 packet of a protocol in it.
func packet(t *testing.T, protocol byte, payload []byte) []byte {
	t.Helper()
	head, err := hex.DecodeString(strings.Join([]string{
		"0800000000000100",             // VNI 1
		"0a58fe000001", "0a58fe000002", // to, from
		"0800",
	}, ""))
	if err != nil {
		t.Fatal(err)
	}
	ip := []byte{0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 2, 0, 10, 0, 1, 0}
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(payload)))
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip))
	return slices.Concat(head, ip, payload)
}

// sum returns the sum of RFC 1071, which is 0xffff over data with a right checksum.
func sum(data []byte) uint16 {
	var s uint32
	for pair := range slices.Chunk(data, 2) {
		s += uint32(binary.BigEndian.Uint16(append(slices.Clone(pair), 0)))
	}
	s = s&0xffff + s>>16
	return uint16(s + s>>16)
}

func checkHeaders(t *testing.T, p []byte) {
	t.Helper()
	if got := hex.EncodeToString(p[8:20]); got != "0a58fe0000020a58fe000001" {
		t.Errorf("the MAC addresses are %s", got)
	}
	ip := p[22:42]
	if from, to := ip[12:16], ip[16:20]; !bytes.Equal(from, []byte{10, 0, 1, 0}) || !bytes.Equal(to, []byte{10, 0, 2, 0}) {
		t.Errorf("from %v to %v", from, to)
	}
	if sum(ip) != 0xffff {
		t.Errorf("the IP header's checksum is wrong: %x", ip)
	}
}

func TestAnswerPing(t *testing.T) {
	// Sums with and without a carry.
	for id := range 1 << 16 {
		request := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: id, Seq: 7, Data: []byte("0123456789")}}
		payload, err := request.Marshal(nil)
		if err != nil {
			t.Fatal(err)
		}
		p := packet(t, 1, payload)
		if !answer(p) {
			t.Fatal("an echo request is not answered")
		}
		got := p[42:]
		if got[0] != byte(ipv4.ICMPTypeEchoReply) || !bytes.Equal(got[4:], payload[4:]) || sum(got) != 0xffff {
			t.Fatalf("id %d: the answer to %x is %x", id, payload, got)
		}
		checkHeaders(t, p)
		if answer(p) {
			t.Fatal("an echo reply is answered")
		}
	}
}

func TestAnswerMessage(t *testing.T) {
	udp := "14f714f700280000" // from and to port 5367, 40 bytes
	question, err := hex.DecodeString(udp + "0101003c" + "00000009" + "1122334455667788" + strings.Repeat("0", 32))
	if err != nil {
		t.Fatal(err)
	}
	p := packet(t, 17, question)
	if !answer(p) {
		t.Fatal("a question is not answered")
	}
	checkHeaders(t, p)
	want := udp + "0103003c" + "00000009" + "000000006c656e6f" + "1122334455667788" + "00000009" + "ffffffff"
	if got := hex.EncodeToString(p[42:]); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	question[9] = 2 // an answer
	if answer(packet(t, 17, question)) {
		t.Error("an answer is answered")
	}
}

func TestAnswerNothingElse(t *testing.T) {
	arp := packet(t, 1, []byte{8, 0, 0, 0, 0, 0, 0, 0})
	arp[21] = 6
	for name, p := range map[string][]byte{
		"short":          packet(t, 1, []byte{8}),
		"empty":          nil,
		"ARP":            arp,
		"TCP":            packet(t, 6, make([]byte, 20)),
		"other UDP port": packet(t, 17, make([]byte, 40)),
		"short message":  packet(t, 17, []byte{0x14, 0xf7, 0x14, 0xf7, 0, 9, 0, 0, 1}),
	} {
		if answer(p) {
			t.Errorf("%s is answered", name)
		}
	}
}
