// Package peer connects the producers of a shard: a Client asks the leader to commit records of this process, and a
// Server takes such requests of other processes, and the watches of consumers. It has the requests, the certificates
// and the connections. It checks who asks and pays for what they send; the producers behind it decide about commits.
// design/leader.md describes the protocol.
package peer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
)

// name is the name in every certificate. Fingerprints, not names, distinguish producers.
const name = "millpond"

var errClientNotHTTP2 = errors.New("the client does not speak HTTP/2")

// An Identity is the key and the certificate of one process. They live in memory and end with it.
type Identity struct {
	certificate tls.Certificate
	fingerprint manifest.Fingerprint
}

// NewIdentity makes a key and a certificate that it signs itself.
func NewIdentity() (*Identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot make a key for other producers: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate for other producers: %w", err)
	}
	// Nobody checks the dates: the manifest vouches for the certificate, and it ends with the process. These are the dates
	// of the gateways' certificates.
	template := &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)),
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{name},
		NotBefore:    time.Date(1975, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(4096, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate for other producers: %w", err)
	}
	return &Identity{
		certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		fingerprint: sha256.Sum256(der),
	}, nil
}

// Fingerprint is what the manifest has of the certificate.
func (i *Identity) Fingerprint() manifest.Fingerprint { return i.fingerprint }

// clientTLS returns the configuration of a client that talks only to the holder of this certificate's key.
func (i *Identity) clientTLS(expected manifest.Fingerprint) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{i.certificate},
		NextProtos:   []string{"h2"},
		ServerName:   name,
		// No authority signs these certificates. The handshake proves that the leader has the key of its certificate, and
		// VerifyConnection compares that certificate with the leader's row in the manifest.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || sha256.Sum256(state.PeerCertificates[0].Raw) != expected {
				return errStranger
			}
			return nil
		},
	}
}

// serverTLS returns the configuration of a server that accepts any certificate whose key the client has.
func (i *Identity) serverTLS() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{i.certificate},
		NextProtos:   []string{"h2"},
		// The handshake proves that the client has the key of its certificate. Each request looks the certificate up.
		ClientAuth: tls.RequireAnyClientCert,
		// A session would outlive the producer's row in the manifest.
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if state.NegotiatedProtocol != "h2" {
				return errClientNotHTTP2
			}
			return nil
		},
	}
}
