package storage

import (
	"errors"
	"fmt"
)

// A Kind says how to react to an error.
type Kind int

const (
	// Transient: the store or the network has a problem. Retry.
	Transient Kind = iota
	// Denied: the store refuses these credentials. Somebody must grant access.
	Denied
	// Misconfigured: the request can never succeed (no such bucket, wrong region, an unexpected object).
	Misconfigured
)

// A kindError is an error of a known kind. All others are transient.
type kindError struct {
	kind Kind
	err  error
}

func (e *kindError) Error() string { return e.err.Error() }
func (e *kindError) Unwrap() error { return e.err }

func transient(err error) error     { return &kindError{Transient, err} }
func denied(err error) error        { return &kindError{Denied, err} }
func misconfigured(err error) error { return &kindError{Misconfigured, err} }

func tooLarge(bytes, bytesMax int64) error {
	return misconfigured(fmt.Errorf("%w: %d bytes of at most %d", ErrTooLarge, bytes, bytesMax))
}

// KindOf returns the kind of an error of this package.
func KindOf(err error) Kind {
	var known *kindError
	if errors.As(err, &known) {
		return known.kind
	}
	return Transient
}
