package storage

import (
	"errors"
	"fmt"
)

// A Kind is what can be done about an error.
type Kind int

const (
	// Transient: the store or the way to it is troubled. Try again.
	Transient Kind = iota
	// Denied: the store refuses these credentials. Somebody must grant something.
	Denied
	// Misconfigured: the request makes no sense there (no such bucket, wrong region, another object than was asked for).
	Misconfigured
)

// A kindError is an error whose kind is known. All others are transient.
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

// KindOf says what can be done about an error of this package.
func KindOf(err error) Kind {
	var known *kindError
	if errors.As(err, &known) {
		return known.kind
	}
	return Transient
}
