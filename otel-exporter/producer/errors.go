package producer

import (
	"errors"
	"fmt"
)

// ErrClosed means that the producer is shutting down. It accepted nothing: retry elsewhere.
var ErrClosed = errors.New("the producer is shutting down; retry elsewhere")

// An OpenError means that the buffer cannot be opened and waiting does not help: the URL or a setting is wrong, or the
// store denies access or cannot hold a buffer. Nothing was appended.
type OpenError struct{ Err error }

func (e *OpenError) Error() string { return "the buffer cannot be opened: " + e.Err.Error() }

func (e *OpenError) Unwrap() error { return e.Err }

// An OverBudgetError means that no memory became free within MaxWait. The producer accepted nothing: retry later.
type OverBudgetError struct{ Needed, Held, Limit int64 }

func (e *OverBudgetError) Error() string {
	return fmt.Sprintf("over the memory limit: %d bytes more than the %d held would pass the limit of %d; retry later",
		e.Needed, e.Held, e.Limit)
}

// A NotCommittedError means that the message was accepted, but never committed and never will be: retry.
type NotCommittedError struct{ Reason string }

func (e *NotCommittedError) Error() string { return "not committed: " + e.Reason + "; retry" }

// An OutcomeUnknownError means that the message may be in the log, or may still get there. A retry may duplicate it.
// Either the caller's context ended before the commit (the error then unwraps to the context's), or the store did not
// report the result of a commit and the manifest has forgotten this producer.
type OutcomeUnknownError struct {
	Reason string
	Err    error
}

func (e *OutcomeUnknownError) Error() string {
	return "the outcome of the commit is unknown: " + e.Reason + "; retry if a duplicate does less harm than a loss"
}

func (e *OutcomeUnknownError) Unwrap() error { return e.Err }

// A RefusedError means that the message itself is unacceptable: do not retry.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "refused: " + e.Reason }

// IsRetryable reports whether the same message may be accepted later.
func IsRetryable(err error) bool {
	var refused *RefusedError
	return err != nil && !errors.As(err, &refused)
}

// HasNoSideEffects reports whether the message is certainly not in the log and never will be.
func HasNoSideEffects(err error) bool {
	var unknown *OutcomeUnknownError
	return err != nil && !errors.As(err, &unknown)
}
