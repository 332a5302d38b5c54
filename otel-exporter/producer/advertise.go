package producer

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"millpond.dev/otel-exporter/internal/manifest"
)

// hostMax is the longest name of a host (RFC 1035, 2.3.4).
const hostMax = 255

// checkPeers returns an error for addresses with which this producer could not lead.
func (c *Config) checkPeers() error {
	switch {
	case c.PeerListen == "" && c.Advertise == "":
		return nil
	case c.PeerListen == "":
		return fmt.Errorf("peers.advertise is %q without peers.listen: set peers.listen to the address to listen on, "+
			"for example 0.0.0.0:4319", c.Advertise)
	case !c.FollowLeader:
		return fmt.Errorf("peers.listen is %q while peers.enabled is false: set peers.enabled to true", c.PeerListen)
	}
	listen, err := netip.ParseAddrPort(c.PeerListen)
	if err != nil {
		return fmt.Errorf("peers.listen is %q: write an IP address and a port, "+
			"like 10.0.0.7:4319, 0.0.0.0:4319 or [::]:4319", c.PeerListen)
	}
	_, err = advertised(net.TCPAddrFromAddrPort(listen), c.Advertise)
	return err
}

// advertised returns the address at which others reach a listener. `advertise` is Config.Advertise.
func advertised(bound net.Addr, advertise string) (string, error) {
	if advertise == "" {
		if address, err := netip.ParseAddrPort(bound.String()); err != nil || address.Addr().IsUnspecified() {
			return "", fmt.Errorf("peers.listen %s does not say where others reach this producer: "+
				"set peers.advertise to HOST:PORT, for example 10.0.0.7:4319", bound)
		}
		return bound.String(), nil
	}
	address, ok := hostAndPort(advertise)
	if !ok || len(advertise) > manifest.AddressMax {
		return "", fmt.Errorf("peers.advertise is %q: write HOST:PORT, for example 10.0.0.7:4319", advertise)
	}
	return address, nil
}

// hostAndPort returns an address that net.Dial understands. An IPv6 address may be without brackets, as Kubernetes
// gives a pod's.
func hostAndPort(text string) (string, bool) {
	colon := strings.LastIndexByte(text, ':')
	if colon < 0 {
		return "", false
	}
	host := text[:colon]
	port, err := strconv.ParseUint(text[colon+1:], 10, 16)
	if err != nil || port == 0 {
		return "", false
	}
	bare, bracketed := strings.CutPrefix(host, "[")
	if bracketed {
		if bare, bracketed = strings.CutSuffix(bare, "]"); !bracketed {
			return "", false
		}
		host = bare
	}
	if bracketed || strings.Contains(host, ":") {
		if address, err := netip.ParseAddr(host); err != nil || !address.Is6() {
			return "", false
		}
	}
	if host == "" || len(host) > hostMax {
		return "", false
	}
	return net.JoinHostPort(host, strconv.FormatUint(port, 10)), true
}
