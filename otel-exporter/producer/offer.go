package producer

import (
	"errors"

	"millpond.dev/otel-exporter/internal/manifest"
)

// The errors of checkOffer. The claims that the group has are not affected.
var (
	errOwnOffer      = errors.New("the claim is of the producer that would commit it")
	errRepeatedOffer = errors.New("the same claim waits for its commit already")
	errBusyOffer     = errors.New("another claim of the producer waits for its commit")
	errNoNumberOffer = errors.New("a claim has numbers from 1 on, the first not after the last")
)

// checkOffer checks a claim that would join the held claims of a group. Registration and numbers are the table's
// matter.
func checkOffer(own manifest.ProducerID, held []manifest.Claim, offered manifest.Claim) error {
	if offered.First == 0 || offered.Last < offered.First {
		return errNoNumberOffer
	}
	if offered.Producer == own {
		return errOwnOffer
	}
	for _, claim := range held {
		switch {
		case claim.Producer != offered.Producer:
		case claim.First == offered.First && claim.Last == offered.Last:
			// The request was repeated, and its copy must not add records.
			return errRepeatedOffer
		default:
			return errBusyOffer
		}
	}
	return nil
}
