package producer

import (
	"errors"
	"fmt"
)

// ErrClosed: the producer is shutting down. Nothing was accepted: retry elsewhere.
var ErrClosed = errors.New("the producer is shutting down; retry elsewhere")

// An OpenError: the buffer cannot be opened, and waiting does not help: the URL or a setting is wrong, the store denies
// access or cannot hold a buffer. Nothing was appended.
type OpenError struct{ Err error }

func (e *OpenError) Error() string { return "the buffer cannot be opened: " + e.Err.Error() }

func (e *OpenError) Unwrap() error { return e.Err }

// An OverBudgetError: there was no memory within MaxWait. Nothing was accepted: retry later.
type OverBudgetError struct{ Needed, Held, Limit int64 }

func (e *OverBudgetError) Error() string {
	return fmt.Sprintf("over the memory limit: %d bytes more than the %d held would pass the limit of %d; retry later",
		e.Needed, e.Held, e.Limit)
}

// A NotCommittedError: the message was accepted, but its commit was not made and never will be: retry.
type NotCommittedError struct{ Reason string }

func (e *NotCommittedError) Error() string { return "not committed: " + e.Reason + "; retry" }

// An OutcomeUnknownError: the message may be in the log, or may still get there. To retry is to accept that it may be
// there twice. Either the caller's context ended before the commit (it is then what this unwraps to), or the store did
// not say what became of a commit and the manifest has forgotten this producer.
type OutcomeUnknownError struct {
	Reason string
	Err    error
}

func (e *OutcomeUnknownError) Error() string {
	return "the outcome of the commit is unknown: " + e.Reason + "; retry if a duplicate does less harm than a loss"
}

func (e *OutcomeUnknownError) Unwrap() error { return e.Err }

// A RefusedError: the message itself cannot be accepted: do not retry.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "refused: " + e.Reason }

// IsRetryable reports whether the same message may be accepted another time.
func IsRetryable(err error) bool {
	var refused *RefusedError
	return err != nil && !errors.As(err, &refused)
}

// HasNoSideEffects reports whether it is certain that the message is not in the log and will not be.
func HasNoSideEffects(err error) bool {
	var unknown *OutcomeUnknownError
	return err != nil && !errors.As(err, &unknown)
}
