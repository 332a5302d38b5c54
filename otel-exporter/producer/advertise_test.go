package producer

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func bound(address string) net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
}

func TestOthersGetAnAddressThatTheyCanUse(t *testing.T) {
	for given, expected := range map[string]string{
		"":                        "10.0.0.7:4319",
		"gateway-1.gateways:4319": "gateway-1.gateways:4319",
		"10.0.0.8:1":              "10.0.0.8:1",
		"fd00::7:4319":            "[fd00::7]:4319",
		"[fd00::7]:4319":          "[fd00::7]:4319",
		"10.0.0.8:04319":          "10.0.0.8:4319",
	} {
		found, err := advertised(bound("10.0.0.7:4319"), given)
		require.NoError(t, err, given)
		assert.Equal(t, expected, found)
	}
	for _, wrong := range []string{
		"host", "host:", ":4319", "host:0", "host:-1", "host:99999", "host:http", "a:b:4319", "[host]:4319",
		"[10.0.0.8]:4319", "[fd00::7:4319", "fd00::7]:4319", "[]:4319", strings.Repeat("x", 256) + ":1", strings.Repeat("x", 300) + ":1",
	} {
		_, err := advertised(bound("10.0.0.7:4319"), wrong)
		require.ErrorContains(t, err, "write HOST:PORT", wrong)
	}
}

func TestAnAddressOfEveryInterfaceIsNoneForOthers(t *testing.T) {
	for _, listen := range []string{"0.0.0.0:4319", "[::]:4319"} {
		_, err := advertised(bound(listen), "")
		reason := "peers.listen " + listen + " does not say where others reach this producer: set peers.advertise"
		require.ErrorContains(t, err, reason)
		found, err := advertised(bound(listen), "10.0.0.8:4319")
		require.NoError(t, err)
		assert.Equal(t, "10.0.0.8:4319", found)
	}
}

// The listener of a port 0 has the port that the system chose.
func TestTheAddressOfAListenerIsAdvertised(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	found, err := advertised(listener.Addr(), "")
	require.NoError(t, err)
	assert.Equal(t, listener.Addr().String(), found)
	assert.NotEqual(t, "127.0.0.1:0", found)
}

func TestTheAddressesOfAProducerAreChecked(t *testing.T) {
	for _, addresses := range [][2]string{
		{"", ""}, {"127.0.0.1:0", ""}, {"10.0.0.7:4319", ""}, {"0.0.0.0:4319", "pod-1:4319"}, {"[::]:4319", "fd00::7:4319"},
	} {
		config := DefaultConfig()
		config.FollowLeader, config.PeerListen, config.Advertise = true, addresses[0], addresses[1]
		require.NoError(t, config.Check(), "%q", addresses)
	}
	for _, wrong := range []struct {
		follow            bool
		listen, advertise string
		reason            string
	}{
		{true, "", "10.0.0.7:4319", `peers.advertise is "10.0.0.7:4319" without peers.listen`},
		{false, "10.0.0.7:4319", "", "set peers.enabled to true"},
		{true, "localhost:4319", "", "write an IP address and a port"},
		{true, ":4319", "", "write an IP address and a port"},
		{true, "10.0.0.7", "", "write an IP address and a port"},
		{true, "fd00::7:4319", "", "write an IP address and a port"},
		{true, "0.0.0.0:4319", "", "set peers.advertise to HOST:PORT"},
		{true, "[::]:4319", "", "set peers.advertise to HOST:PORT"},
		{true, "0.0.0.0:4319", "10.0.0.7", `peers.advertise is "10.0.0.7": write HOST:PORT`},
	} {
		config := DefaultConfig()
		config.FollowLeader, config.PeerListen, config.Advertise = wrong.follow, wrong.listen, wrong.advertise
		require.ErrorContains(t, config.Check(), wrong.reason, "%q", wrong)
	}
}
