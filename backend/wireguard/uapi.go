package wireguard

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// encodeConfig returns a configuration in the text format that WireGuard in this process accepts
// (https://www.wireguard.com/xplatform/). wgctrl writes the same text to a socket. The process does not use that socket
// to reach its own device: the path is the same in all network namespaces, so another process may serve it.
func encodeConfig(c wgtypes.Config) string {
	var b strings.Builder
	line := func(key string, value any) { fmt.Fprintf(&b, "%s=%v\n", key, value) }
	if c.PrivateKey != nil {
		line("private_key", hexKey(*c.PrivateKey))
	}
	if c.ListenPort != nil {
		line("listen_port", *c.ListenPort)
	}
	for _, p := range c.Peers {
		line("public_key", hexKey(p.PublicKey))
		if p.Remove {
			line("remove", true)
		}
		if p.UpdateOnly {
			line("update_only", true)
		}
		if p.PresharedKey != nil {
			line("preshared_key", hexKey(*p.PresharedKey))
		}
		if p.Endpoint != nil {
			line("endpoint", p.Endpoint)
		}
		if p.PersistentKeepaliveInterval != nil {
			line("persistent_keepalive_interval", int(p.PersistentKeepaliveInterval.Seconds()))
		}
		if p.ReplaceAllowedIPs {
			line("replace_allowed_ips", true)
		}
		for _, n := range p.AllowedIPs {
			line("allowed_ip", n.String())
		}
	}
	return b.String()
}

func hexKey(k wgtypes.Key) string { return hex.EncodeToString(k[:]) }

// decodeState parses the state that WireGuard in this process returns.
func decodeState(text string) (*wgtypes.Device, error) {
	d := &wgtypes.Device{Type: wgtypes.Userspace}
	if n := strings.Count(text, "\npublic_key="); n > 0 {
		d.Peers = make([]wgtypes.Peer, 0, n)
	}
	var p *wgtypes.Peer
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok {
			continue
		}
		var err error
		switch {
		case key == "public_key":
			d.Peers = append(d.Peers, wgtypes.Peer{})
			p = &d.Peers[len(d.Peers)-1]
			p.PublicKey, err = decodeKey(value)
		case p == nil:
			err = decodeDeviceLine(d, key, value)
		default:
			err = decodePeerLine(p, key, value)
		}
		if err != nil {
			return nil, fmt.Errorf("state of the device: %s: %w", key, err)
		}
	}
	d.PublicKey = d.PrivateKey.PublicKey()
	return d, nil
}

func decodeDeviceLine(d *wgtypes.Device, key, value string) (err error) {
	switch key {
	case "private_key":
		d.PrivateKey, err = decodeKey(value)
	case "listen_port":
		d.ListenPort, err = strconv.Atoi(value)
	}
	return err
}

func decodePeerLine(p *wgtypes.Peer, key, value string) (err error) {
	number := func() int64 {
		var n int64
		n, err = strconv.ParseInt(value, 10, 64)
		return n
	}
	switch key {
	case "preshared_key":
		p.PresharedKey, err = decodeKey(value)
	case "endpoint":
		var at netip.AddrPort
		if at, err = netip.ParseAddrPort(value); err == nil {
			p.Endpoint = net.UDPAddrFromAddrPort(at)
		}
	case "persistent_keepalive_interval":
		p.PersistentKeepaliveInterval = time.Duration(number()) * time.Second
	case "last_handshake_time_sec":
		if seconds := number(); seconds != 0 {
			p.LastHandshakeTime = time.Unix(seconds, 0)
		}
	case "rx_bytes":
		p.ReceiveBytes = number()
	case "tx_bytes":
		p.TransmitBytes = number()
	case "allowed_ip":
		var n *net.IPNet
		if _, n, err = net.ParseCIDR(value); err == nil {
			p.AllowedIPs = append(p.AllowedIPs, *n)
		}
	}
	return err
}

func decodeKey(text string) (key wgtypes.Key, err error) {
	raw, err := hex.DecodeString(text)
	if err != nil {
		return key, err
	}
	return wgtypes.NewKey(raw)
}
